"""Runs that share a budget: together they never spend more, whichever is killed, and wherever the ledger is."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmbeam_sandbox import Proxy, Sandbox

from airflow_provider_llmbeam.engine.pacing.account import Account
from airflow_provider_llmbeam.engine.pacing.ledger import Ledger
from airflow_provider_llmbeam.exceptions import BudgetExceededError, JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.pipeline.shared_budget import (
    LedgerFile,
    check_budget,
    open_account,
    reserve_batch,
    settle_batch,
)
from airflow_provider_llmbeam.spec import JobSpec, SharedBudget
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from tests.clouds import for_one_test
from tests.hostile import examples
from tests.pipeline.conftest import read_lines
from tests.pipeline.test_budget import PRICE, rows

pytestmark = [pytest.mark.promise(4), pytest.mark.promise(2)]


def limits(usd: float, over: str = "team") -> dict[str, Any]:
    return {"budget": {"usd": usd, "over": over}, "price": PRICE, "max_in_flight": 4}


def spent(state: Path) -> int:
    """Returns what the journals say, at one dollar per token."""
    entries = [entry for segment in state.glob("*/journal@loopback/*.jsonl") for entry in read_lines(segment)]
    return sum(entry["input_tokens"] + entry["output_tokens"] for entry in entries)


def ledger_of(state: Path, usd: float, over: str = "team") -> Ledger:
    return Ledger.read((state / "budgets" / f"{over}.json").read_bytes(), usd, over)


def test_a_run_stops_at_the_shared_budget_and_a_larger_one_continues(job, sandbox, tmp_path):
    state = tmp_path / "state"
    job.spec |= {"state_uri": str(state), "generation": {"max_output_tokens": 30}}
    job.write(rows(60))
    with pytest.raises(BudgetExceededError, match="'team', which other runs spend, too"):
        job.run(limits=limits(400.0))
    paid = len(sandbox.requests)
    assert 0 < paid < 60
    ledger = ledger_of(state, 400.0)
    assert ledger.open == {}
    assert ledger.taken_nano_usd == spent(state) * NANO

    with pytest.raises(BudgetExceededError):
        job.run(name="another", sink={"uri": f"{tmp_path}/other"}, limits=limits(400.0))
    assert len(sandbox.requests) <= paid + 1, "another run finds it spent"

    sent = len(sandbox.requests)
    ended = job.run(limits=limits(5000.0))
    assert ended.manifest["rows"]["answered"] == 60
    assert len(sandbox.requests) == sent + 60 - paid, "nothing is asked twice"


def test_what_is_left_is_in_the_estimate_and_in_the_log(job, sandbox, tmp_path, caplog):
    job.spec |= {"state_uri": str(tmp_path / "state")}
    job.write(rows(10))
    spec = JobSpec.parse(job.spec | {"limits": job.spec["limits"] | limits(1000.0)})
    reserve_batch(spec, 990.0)
    found = make_estimate(spec, 0)
    assert found.budget_left_usd == 10.0
    assert found.exceeds_budget
    assert "Left      $10.00 of the budget that the runs share" in [*found.lines()]
    with caplog.at_level("INFO"):
        check_budget(spec)
    assert "$10.00 of the budget 'team' are left" in caplog.text
    with pytest.raises(BudgetExceededError, match="No job was submitted"):
        reserve_batch(JobSpec.parse(job.spec | {"name": "b", "limits": job.spec["limits"] | limits(1000.0)}), 11.0)
    reserve_batch(spec, 990.0)
    settle_batch(spec, 100.0)
    settle_batch(spec, 100.0)
    assert make_estimate(spec, 0).budget_left_usd == 900.0


@pytest.mark.parametrize("over", ["backfill", "month", "dag"])
def test_runs_of_a_dag_are_known_in_airflow_alone(job, sandbox, tmp_path, over):
    job.spec |= {"state_uri": str(tmp_path / "state")}
    with pytest.raises(JobSpecError, match=f"{over!r} are runs of a Dag, and this is none. Expected a name here"):
        job.run(rows(3), limits=limits(5.0, over))
    assert len(sandbox.requests) == 0


def test_a_torn_ledger_is_named_and_nothing_is_sent(job, sandbox, tmp_path):
    job.spec |= {"state_uri": str(tmp_path / "state")}
    (tmp_path / "state" / "budgets").mkdir(parents=True)
    (tmp_path / "state" / "budgets" / "team.json").write_text('{"usd": 5.0, "op')
    with pytest.raises(JobFailedError, match=r"The ledger '.*team.json' of `limits.budget` cannot be read"):
        job.run(rows(3), limits=limits(5.0))
    assert len(sandbox.requests) == 0


CENT = NANO // 100


def _spend(spec_json: str, seed: int, bill: str) -> None:
    """Sends requests of one to three cents until the budget is spent, and writes each one paid to a bill."""
    spec, random_ = JobSpec.from_json(spec_json), random.Random(seed)
    account = open_account(spec)
    assert account is not None
    with Path(bill).open("ab", buffering=0) as file:
        while True:
            cost = random_.randint(1, 3) * CENT
            while 0 < (wait := account.admit(cost)) < 1e9:
                time.sleep(0.001)
            if wait:
                break
            file.write(f"{cost}\n".encode())
            account.add(cost)
            account.release(cost)
    account.close(is_end=True)


def _spend_in_processes(spec: JobSpec, directory: Path, processes: int, kills: int) -> tuple[int, int]:
    """Returns what processes have paid, some of which are killed and begin again, and what the ledger says."""
    context = multiprocessing.get_context("spawn")
    started = []

    def start(number: int) -> Any:
        bill = str(directory / f"bill-{number}")
        process = context.Process(target=_spend, args=(spec.model_dump_json(), number, bill))
        process.start()
        started.append(process)
        return process

    for number in range(processes):
        start(number)
    random_ = random.Random(0)
    for number in range(kills):
        time.sleep(0.3)
        alive = [process for process in started if process.is_alive()]
        if alive:
            os.kill(random_.choice(alive).pid, signal.SIGKILL)
            start(processes + number)
    for process in started:
        process.join()
    paid = sum(int(line) for bill in directory.glob("bill-*") for line in bill.read_text().split())
    content = storage.read(spec.paths.budget_uri)
    return paid, Ledger.read(content, spec.limits.budget.usd, "x").taken_nano_usd


@pytest.mark.full
def test_processes_that_are_killed_never_spend_more_together(tmp_path):
    spec = JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": "in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "echo"},
            "sink": {"uri": f"{tmp_path}/out"},
            "state_uri": f"{tmp_path}/state",
            "limits": limits(300.0),
        }
    )
    paid, taken = _spend_in_processes(spec, tmp_path, processes=4, kills=4)
    assert paid <= taken <= 300 * NANO
    assert paid >= 300 * NANO * 0.5, "a killed process keeps no more than a part of what was left"


@given(
    runs=st.integers(1, 16),
    steps=st.lists(st.tuples(st.integers(0, 15), st.sampled_from(["send"] * 20 + ["kill", "end"])), max_size=400),
)
@examples(0.3)
def test_a_backfill_of_many_runs_at_once_stays_below_its_cap(
    runs: int, steps: list[tuple[int, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = LedgerFile(SharedBudget(usd=2.0, over="x"), f"{tmp_path_factory.mktemp('ledger')}/budget.json")
    opened = 0

    def open_one() -> Account:
        nonlocal opened
        opened += 1
        return Account(
            file.change,
            2.0,
            over="backfill",
            name=str(opened),
            interval_seconds=0.0,
            first_requests=4,
            in_background=lambda called: called(),
        )

    accounts, paid = [open_one() for _ in range(runs)], 0
    for index, step in steps:
        account = accounts[index % runs]
        if step == "send":
            account.admit(CENT)
            if account.admit(CENT) == 0:
                paid += CENT
                account.add(CENT)
                account.release(CENT)
        else:
            if step == "end":
                account.close()
            accounts[index % runs] = open_one()
    assert paid <= 2 * NANO


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_processes_share_a_ledger_on_cloud_storage(monkeypatch, tmp_path):
    with Sandbox(buckets=("state",)) as sandbox, Proxy(sandbox) as proxy:
        for _ in for_one_test((sandbox, proxy), monkeypatch):
            spec = JobSpec.parse(
                {
                    "name": "job",
                    "source": {"uri": "in.jsonl", "key": ["id"]},
                    "prompt": {"template": "{{ row.text }}"},
                    "model": {"type": "echo"},
                    "sink": {"uri": f"{tmp_path}/out"},
                    "state_uri": "gs://state/a",
                    "limits": limits(2.0),
                }
            )
            paid, taken = _spend_in_processes(spec, tmp_path, processes=3, kills=1)
            assert 0 < paid <= taken <= 2 * NANO
            assert json.loads(storage.read("gs://state/a/budgets/team.json"))["version"] == 1
