"""Links where a job writes: whoever may write there has no other file of the worker overwritten or deleted."""

from __future__ import annotations

import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError
from airflow_provider_llmbeam.pipeline.__main__ import write_outcome
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.steps import run_step
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.protocol.steps import EstimateSample

ROWS = [{"id": number, "text": f"row {number}"} for number in range(4)]


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """Returns a directory of the worker with files that no job may change."""
    directory = tmp_path / "worker"
    directory.mkdir()
    for name in ("airflow.cfg", "lease", "report.json", "answers-00000-of-00001.jsonl"):
        (directory / name).write_text("of the worker")
    return directory


@pytest.fixture
def spec(job: Any, tmp_path: Path) -> JobSpec:
    job.write(ROWS)
    return JobSpec.parse(job.spec | {"state_uri": str(tmp_path / "state")})


def contents(worker: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in worker.iterdir()}


@pytest.mark.parametrize(
    "name",
    [
        *("state/job/lease", "out/.llmbeam/_owner.json", "out/.llmbeam/_owner.json.lock", "out/.llmbeam/_merge"),
        *("out/report.json", "out/report.html", "out/answers-00000-of-00001.jsonl"),
        *("out/dead_letter-00000-of-00001.jsonl", "out/.llmbeam/job/staging/report.json"),
        *("out/.llmbeam/job/staging/dead_letter-0-empty.jsonl", "out/.llmbeam/history.jsonl.lock"),
        *("state/job/alerts.json", "state/job/stop", "state/job/skipped.json", "state/job/accepted.json"),
    ],
)
def test_a_link_in_the_place_of_a_file_is_replaced_or_refused(
    spec: JobSpec, tmp_path: Path, worker: Path, name: str
) -> None:
    before, link = contents(worker), tmp_path / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(worker / "airflow.cfg")
    with suppress(LLMBeamError):
        run(spec)
    assert contents(worker) == before


@pytest.mark.parametrize("name", ["state/job/lease", "out/.llmbeam/_owner.json.lock"])
def test_a_link_in_the_place_of_a_lock_is_refused_before_anything_is_sent(
    spec: JobSpec, tmp_path: Path, worker: Path, sandbox: Any, name: str
) -> None:
    link = tmp_path / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(worker / "airflow.cfg")
    with pytest.raises(
        JobSpecError, match=rf"Is a symbolic link, and none is followed here: '{link}'.*Nothing was sent"
    ):
        run(spec)
    assert not sandbox.requests


@pytest.mark.parametrize(
    "name",
    [
        *("state/job", "state/job/journal", "state/job/progress", "state/rates"),
        *("out/.llmbeam", "out/.llmbeam/job", "out/.llmbeam/job/staging"),
    ],
)
@pytest.mark.parametrize("runs", [run, lambda spec: run_step("estimate", spec, EstimateSample(sample_size=0))])
def test_a_linked_directory_below_the_state_or_the_sink_is_refused(
    spec: JobSpec, tmp_path: Path, worker: Path, sandbox: Any, name: str, runs: Any
) -> None:
    before, link = contents(worker), tmp_path / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(worker)
    with pytest.raises(JobSpecError, match=rf"'{link}' is a link to '{worker}'"):
        runs(spec)
    assert contents(worker) == before
    assert not sandbox.requests


def test_the_state_and_the_sink_themselves_may_be_links(job: Any, tmp_path: Path) -> None:
    job.write(ROWS)
    for name in ("state", "out"):
        (tmp_path / f"disk/{name}").mkdir(parents=True)
        (tmp_path / f"linked_{name}").symlink_to(tmp_path / f"disk/{name}")
    changes = {"state_uri": str(tmp_path / "linked_state"), "sink": {"uri": str(tmp_path / "linked_out")}}
    assert run(JobSpec.parse(job.spec | changes))["rows"]["answered"] == len(ROWS)
    assert (tmp_path / "disk/out/report.json").is_file()


def test_a_link_in_the_place_of_a_part_of_the_outcome_is_not_followed(tmp_path: Path, worker: Path) -> None:
    (tmp_path / "result.part").symlink_to(worker / "airflow.cfg")
    with pytest.raises(PermissionError, match="Is a symbolic link"):
        write_outcome(tmp_path / "result.json", {"manifest": {}})
    assert (worker / "airflow.cfg").read_text() == "of the worker"


def test_audit_files_are_read_by_nobody_else_also_in_a_directory_that_others_may_list(job: Any) -> None:
    directory = job.directory / "audit"
    directory.mkdir(mode=0o755)
    job.run(ROWS, safety={"audit": {"uri": str(directory)}})
    modes = {stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*.jsonl")}
    assert modes == {0o600}
