"""A backfill that an earlier version of the package began is resumed, and nothing is paid for twice."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llmbeam_sandbox import Sandbox

from airflow_provider_llmbeam.engine.pacing.ledger import Ledger
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import read_manifest
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.pacing.learned_rate_file import LearnedRateFile
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.identity import display_name_prefix
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from tests.upgrade.make import LEARNED, LEARNED_AT, ROWS, STATES, batch_of, digests, spec_of

VERSIONS = sorted(each.name for each in STATES.iterdir())
pytestmark = [pytest.mark.promise(2), pytest.mark.parametrize("version", VERSIONS)]


@pytest.fixture
def state(tmp_path: Path, version: str) -> Path:
    return Path(shutil.copytree(STATES / version, tmp_path / "state"))


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    with Sandbox() as started:
        yield started


def change(state: Path, pattern: str, changed: Callable[[str], str]) -> None:
    (path,) = state.glob(pattern)
    before = path.read_text()
    path.write_text(changed(before))
    assert path.read_text() != before


def own_name(spec: JobSpec) -> str:
    """Returns what takes the place of the display name of a batch-inference job, without its digest."""
    return rf'"{display_name_prefix(spec)}\1"'


def lines(state: Path) -> list[dict[str, Any]]:
    (segment,) = state.glob("backfill/journal@*/*.jsonl")
    return [json.loads(line) for line in segment.read_text().splitlines()]


def test_the_rest_of_the_rows_is_sent_and_the_budget_continues(
    tmp_path: Path, state: Path, sandbox: Sandbox
) -> None:
    answered = lines(state)
    paid = sum(entry["cost_nano_usd"] for entry in answered)
    assert 0 < len(answered) < ROWS
    manifest = run(spec_of(tmp_path, sandbox, 5000.0))
    assert manifest["rows"]["answered"] == ROWS
    assert len(sandbox.requests) == ROWS - len(answered)
    ledger = Ledger.read((state / "budgets" / "two-years.json").read_bytes(), 5000.0, "x")
    assert ledger.taken_nano_usd == paid + round(manifest["cost_usd"] * NANO)


def test_what_batch_inference_has_done_is_known(tmp_path: Path, state: Path, sandbox: Sandbox) -> None:
    batch = batch_of(spec_of(tmp_path, sandbox, 5000.0))
    # Display names have a digest of the addresses of the job, which are others here.
    change(state, "batch/batch/manifest.json", lambda text: re.sub(r'"[^"]*-(0{11}\d)"', own_name(batch), text))
    manifest = read_manifest(batch)
    assert manifest is not None
    assert (len(manifest.files), len(manifest.harvested), manifest.total.answered) == (2, 1, 27)
    assert manifest.cost_usd == 332.0


def test_a_job_elsewhere_and_its_batch_inference_are_known(state: Path) -> None:
    """Else a Dataflow job that runs while the package is upgraded would be cancelled and begun anew."""
    assert digests() == json.loads((state / "digests.json").read_text())


def test_the_learned_rate_is_known(state: Path) -> None:
    found = LearnedRateFile(f"{state}/rates/", "a server", lambda: LEARNED_AT).read()
    assert (found.base_rps, found.burst) == (LEARNED.base_rps, LEARNED.burst)


@pytest.mark.parametrize("field", ["fingerprint", "text", "cost_nano_usd"])
def test_a_field_that_a_version_renames_is_seen_here(
    tmp_path: Path, state: Path, sandbox: Sandbox, field: str
) -> None:
    """Proves that the test above can fail."""
    change(state, "backfill/journal@*/*.jsonl", lambda text: text.replace(f'"{field}"', f'"{field}_new"'))
    run(spec_of(tmp_path, sandbox, 5000.0))
    assert len(sandbox.requests) == ROWS


@pytest.mark.parametrize("pattern", ["backfill/journal@*/*.jsonl", "budgets/two-years.json"])
def test_a_state_of_a_newer_version_is_refused_and_nothing_is_sent(
    tmp_path: Path, state: Path, sandbox: Sandbox, pattern: str
) -> None:
    change(state, pattern, lambda text: re.sub(r'\{("version":1,)?', '{"version":2,', text, count=1))
    with pytest.raises(
        JobFailedError, match="has version 2 of its format, and this version of the package knows 1"
    ):
        run(spec_of(tmp_path, sandbox, 5000.0))
    assert len(sandbox.requests) == 0


def test_a_batch_of_a_newer_version_is_refused(tmp_path: Path, state: Path, sandbox: Sandbox) -> None:
    change(state, "batch/batch/manifest.json", lambda text: re.sub(r'"version": ?1', '"version": 2', text))
    with pytest.raises(JobFailedError, match="has version 2 of its format"):
        read_manifest(batch_of(spec_of(tmp_path, sandbox, 5000.0)))
