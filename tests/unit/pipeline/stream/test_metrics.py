"""What the members of a stream leave below `state_uri`, and what the one that leads makes of it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_llmbeam.pipeline.stream import metrics as metrics_module
from airflow_provider_llmbeam.pipeline.stream.group import HOUR, GroupReader, folder_of
from airflow_provider_llmbeam.pipeline.stream.metrics import Metrics
from airflow_provider_llmbeam.pipeline.stream.state import StreamState
from airflow_provider_llmbeam.pipeline.stream.windows import Window
from tests.stream_jobs import stream_job

NOW = 1_764_403_200.0  # the begin of an hour
MODEL = "echo:echo"


@pytest.fixture
def clock(monkeypatch):
    """The time, which is moved by hand."""
    time = [NOW]
    monkeypatch.setattr(metrics_module.time, "time", lambda: time[0])
    return time


@pytest.fixture
def spec(tmp_path):
    return stream_job(state_uri=str(tmp_path / "state"), alerts={"lag": 100, "for_seconds": 60})


def member(spec, tmp_path, name="w0", *, may_lead=False):
    state = StreamState(may_lead=may_lead, assigned=1, lags={("q", 0): 7})
    return Metrics(spec, name, state, tmp_path / "alerts.jsonl", tmp_path / "page.json"), state


def write(metrics, at):
    metrics.write(metrics.sample(at), at)


def read(spec, at):
    return GroupReader(spec.paths.stream_uri).read(at)


def test_the_windows_of_members_add_up_with_what_was_sampled(spec, tmp_path, clock):
    for name in ("w0", "w1"):
        metrics, state = member(spec, tmp_path, name)
        metrics.add(Window(answers=2, dead_letter=Counter(blocked=1)), int(NOW * 1000))
        state.counts.cost_nano_usd, state.counts.rejections = 50, 4
        write(metrics, NOW)
        write(metrics, NOW + 1)  # what was sampled counts once
    group = read(spec, NOW + 2)
    assert group.windows == {
        int(NOW): Window(answers=4, dead_letter=Counter(blocked=2), spent_nano_usd=100, rejections=8, lag=14)
    }
    assert (group.counts, group.models.keys()) == ({int(NOW): 2}, {MODEL})
    assert group.members["w1"].lags == {"q/0": 7}


def test_a_member_that_starts_again_goes_on_with_its_windows_and_the_next_hour_has_a_file(spec, tmp_path, clock):
    metrics, _ = member(spec, tmp_path)
    metrics.add(Window(answers=2), int(NOW * 1000))
    write(metrics, NOW)
    clock[0] += 30
    metrics, _ = member(spec, tmp_path)
    metrics.add(Window(answers=3), int(clock[0] * 1000))
    metrics.add(Window(answers=1), int((NOW + HOUR) * 1000))
    write(metrics, NOW + HOUR)
    assert {begin: each.answers for begin, each in read(spec, NOW + HOUR).windows.items()} == {
        int(NOW): 5,
        int(NOW) + HOUR: 1,
    }


def test_the_member_that_leads_raises_alerts_once_also_after_another_one_led(spec, tmp_path, clock):
    def told():
        path = tmp_path / "alerts.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(each["kind"], each["is_resolved"]) for each in map(json.loads, lines)]

    (first, state), (second, other) = member(spec, tmp_path, may_lead=True), member(spec, tmp_path, "w1")
    for minute in range(12):
        if minute == 4:  # a rebalance
            state.may_lead, other.may_lead = False, True
        state.lags = {("q", 0): 5 if minute in (0, 1, 2, 8, 9, 10, 11) else 500}
        for metrics in (first, second):
            write(metrics, NOW + 60 * minute + 50)
            write(metrics, NOW + 60 * minute + 59)
    assert told() == [("lag", False), ("lag", True)]


def test_of_members_that_all_may_lead_one_raises_alerts_and_another_one_after_its_end(spec, tmp_path, clock):
    members = [member(spec, tmp_path, name, may_lead=True)[0] for name in ("w0", "w1", "w2")]
    for minute in range(5):
        group = members if minute < 3 else members[1:]  # as Pub/Sub's, and the first one is killed
        for at in (50, 59):
            for metrics in group:
                metrics._state.lags = {("q", 0): 500}
                write(metrics, NOW + 60 * minute + at)
        raised = [metrics._raised is not None for metrics in members]
        assert raised == ([True, False, False] if minute < 3 else [True, True, False])
    assert (tmp_path / "alerts.jsonl").read_text().count("\n") == 1


def test_the_page_is_written_by_the_leader_and_each_member_gives_it_to_its_task(spec, tmp_path, clock):
    metrics, _ = member(spec, tmp_path, "w1")
    write(metrics, NOW)
    assert not (tmp_path / "page.json").exists()
    leader, _ = member(spec, tmp_path, may_lead=True)
    leader.add(Window(answers=600, latencies=Counter({0: 600})), int(NOW * 1000))
    write(leader, NOW + 1)
    page = Path(spec.paths.stream_html_uri).read_text()
    assert "600" in page
    assert "<script" not in page
    (tmp_path / "page.json").unlink()
    write(metrics, NOW + 61)
    assert json.loads((tmp_path / "page.json").read_text())["uri"] == spec.paths.stream_html_uri


def test_what_is_left_at_the_end_is_written(spec, tmp_path, clock):
    metrics, state = member(spec, tmp_path, may_lead=True)
    write(metrics, NOW)

    async def run():
        async with metrics.keep_files():
            metrics.add(Window(answers=2345), int(NOW * 1000))
            state.may_lead = False  # as the member leaves its group before that

    asyncio.run(run())
    assert read(spec, NOW).windows[int(NOW)].answers == 2345
    assert "2,345 in" in Path(spec.paths.stream_html_uri).read_text()


def test_files_of_long_ago_are_deleted(spec, tmp_path, clock):
    old, young = (Path(spec.paths.stream_uri, folder_of(int(NOW) // HOUR - hours)) for hours in (169, 168))
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "w0.json").write_text("{}")
    leader, _ = member(spec, tmp_path, may_lead=True)
    write(leader, NOW)
    assert [[*folder.iterdir()] != [] for folder in (old, young)] == [False, True]


def test_a_folder_that_cannot_be_written_is_one_warning_and_ends_nothing(spec, tmp_path, clock, caplog):
    metrics, _ = member(spec, tmp_path, may_lead=True)
    (tmp_path / "state").write_text("a file where the folder would be")
    for second in range(3):
        write(metrics, NOW + second)
    assert caplog.text.count("The metrics below") == 1
    (tmp_path / "state").unlink()
    write(metrics, NOW + 4)
    assert len(read(spec, NOW).windows) == 1


def test_the_record_of_an_increment_names_window_member_and_time(spec, tmp_path, clock):
    metrics, _ = member(spec, tmp_path)
    key, value = metrics.record(Window(answers=2), int(NOW * 1000) + 61_001)
    assert key == f"{int(NOW) + 60}:w0:{int(NOW * 1000) + 61_001}".encode()
    assert json.loads(value) == {
        "window": int(NOW) + 60,
        "window_seconds": 60,
        "member": "w0",
        "sequence": int(NOW * 1000) + 61_001,
        "model": MODEL,
        "answers": 2,
        "dead_letter": {},
        "input_tokens": 0,
        "output_tokens": 0,
        "cost_nano_usd": 0,
        "latencies": {},
        "latency_ms": 0,
    }
