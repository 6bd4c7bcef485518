from __future__ import annotations

import pytest
from llmbeam_sandbox import ManualClock
from llmbeam_sandbox.billing.gpus import GPUS, gpu_named, machine_fault
from llmbeam_sandbox.billing.state import CLOUD_RUN, VERTEX, Bill, Rent
from llmbeam_sandbox.core.clock import Timeline

NAME = "projects/1/locations/us-central1/endpoints/e"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timeline(clock: ManualClock) -> Timeline:
    return Timeline(clock)


@pytest.fixture
def bill(timeline: Timeline) -> Bill:
    return Bill(timeline)


def rent(kind=VERTEX, gpu="NVIDIA_L4", gpus=2, labels=None) -> Rent:
    return Rent(kind=kind, name=NAME, gpu=gpu_named(gpu) if gpu else None, gpus=gpus, labels=lambda: labels or {})


def test_a_charge_runs_by_the_second_and_then_stands_still(bill: Bill, clock: ManualClock) -> None:
    bill.start("a", clock(), rent())
    clock.advance(1800)
    [running] = bill.running
    assert (running.seconds, running.until, running.location, running.project) == (1800, None, "us-central1", "1")
    assert running.usd == pytest.approx(0.64)
    bill.stop("a", clock())
    clock.advance(1800)
    [line] = bill.lines
    assert (line.seconds, line.until, bill.running, bill.usd_per_hour) == (1800, clock() - 1800, [], 0)
    assert bill.usd == pytest.approx(0.64)
    bill.stop("a", clock())
    assert len(bill.lines) == 1


def test_minutes_are_counted_per_accelerator_and_after_a_time(bill: Bill, clock: ManualClock) -> None:
    start = clock()
    bill.start("a", start, rent())
    bill.start("b", start + 60, rent(CLOUD_RUN, gpus=1))
    clock.advance(120)
    assert bill.gpu_minutes() == 2 * 2 + 1
    assert bill.gpu_minutes(after=start + 90) == pytest.approx(1 + 0.5)
    assert bill.gpu_minutes(after=clock()) == 0


def test_labels_are_the_current_ones_until_the_charge_ends(bill: Bill, clock: ManualClock) -> None:
    labels = {"a": "1"}
    bill.start("a", clock(), rent(labels=labels))
    labels["a"] = "2"
    assert dict(bill.running[0].labels) == {"a": "2"}
    bill.stop("a", clock())
    labels["a"] = "3"
    assert dict(bill.lines[0].labels) == {"a": "2"}


def test_due_actions_run_in_order_before_the_bill_is_read(
    bill: Bill, timeline: Timeline, clock: ManualClock
) -> None:
    start = clock()
    bill.start("a", start, rent())
    timeline.at(start + 50, lambda at: bill.start("b", at, rent()))
    timeline.at(start + 10, lambda at: bill.stop("a", at))
    clock.advance(100)
    assert [(charge.since - start, charge.seconds) for charge in (*bill.lines, *bill.running)] == [
        (0, 10),
        (50, 50),
    ]


def test_prices_grow_with_the_accelerator() -> None:
    order = ("NVIDIA_TESLA_T4", "NVIDIA_L4", "NVIDIA_TESLA_A100", "NVIDIA_A100_80GB", "NVIDIA_H100_80GB")
    prices = [gpu.vertex_usd_per_hour for name in order if (gpu := gpu_named(name))]
    assert prices == sorted(prices)
    assert all((gpu.cloud_run_usd_per_hour > 0) == bool(gpu.cloud_run_name) for gpu in GPUS)


def test_an_accelerator_is_known_by_each_of_its_names() -> None:
    assert gpu_named("nvidia-l4") is gpu_named(11) is gpu_named("NVIDIA_L4") is not None
    assert gpu_named("nvidia-l5") is None


@pytest.mark.parametrize(
    ("machine", "gpu", "gpus", "words"),
    [
        ("g2-standard-12", "NVIDIA_L4", 1, ""),
        ("a3-highgpu-8g", "NVIDIA_H100_80GB", 8, ""),
        ("n1-standard-8", "NVIDIA_TESLA_T4", 2, ""),
        ("n1-standard-8", "", 0, ""),
        ("g2-standard-12", "", 0, "0 accelerators were requested"),
        ("g2-standard-12", "NVIDIA_TESLA_A100", 1, "has 1 NVIDIA_L4"),
        ("e2-standard-8", "NVIDIA_TESLA_T4", 1, "cannot be attached"),
        ("z9-standard-8", "", 0, "not supported"),
        ("", "", 0, "not supported"),
    ],
)
def test_machines_have_the_accelerators_that_are_built_in(machine: str, gpu: str, gpus: int, words: str) -> None:
    fault = machine_fault(machine, gpu, gpus)
    assert words in fault if words else fault == ""
