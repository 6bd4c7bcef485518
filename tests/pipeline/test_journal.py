"""A journal that others write to, too, and that others must not read."""

from __future__ import annotations

import gzip
import json
import logging
import os
import ssl
import stat
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec
from tests.pipeline.conftest import estimate

pytestmark = pytest.mark.promise(2)

ROWS = [{"id": number, "text": f"text {number}"} for number in range(10)]


def directory_of(job: Any, **changes: Any) -> Path:
    return Path(JobSpec.parse(job.spec | changes).paths.journal_uri)


def entries_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]


def replaced(directory: Path, *parts: bytes) -> Path:
    """Puts one file in the place of all segments."""
    for path in directory.glob("*.jsonl"):
        path.unlink()
    (path := directory / "foreign.jsonl").write_bytes(b"".join(parts))
    return path


def wrong_entries(entries: list[dict[str, Any]]) -> list[Any]:
    """Entries with the fingerprints of the job, each with another fault."""
    first = {**entries[0], "answered_at": time.time()}
    faults: list[dict[str, Any]] = [
        {"text": None},
        {"input_tokens": "7"},
        {"output_tokens": -(10**30)},
        {"answered_at": "x"},
        {"answered_at": float("nan")},
        {"answered_at": float("inf")},
        {"finish_reason": 7},
        {"fingerprint": 5},
        {"fingerprint": "\ud800"},
        {"job": ["a"]},
        {"attempts": None},
    ]
    deep: Any = 0
    for _ in range(900):
        deep = [deep]
    return [{**first, **fault} for fault in [*faults, {"parsed": deep}]]


def test_an_entry_of_any_wrong_type_stops_no_job(days, sandbox, caplog):
    monday, tuesday = days
    monday.run(ROWS)
    entries = entries_of(directory_of(monday))
    lines = [json.dumps(entry).encode() + b"\n" for entry in (*wrong_entries(entries), *entries[1:])]
    foreign = replaced(directory_of(monday), *lines)
    caplog.set_level(logging.WARNING, "airflow_provider_llmbeam")
    ended = tuesday.run(ROWS)
    assert ended.origins == Counter(cached=9, fresh=1)
    assert len(sandbox.requests) == 11
    (message,) = [text for text in caplog.messages if "foreign.jsonl" in text]
    assert f"{str(foreign)!r}: 12 of 21 lines are no entries" in message
    assert "line 1: its field `text` is None" in message


OTHER_FILES = {
    "truncated.jsonl": gzip.compress(b"{}\n" * 999)[:-20],
    "binary.jsonl": bytes(range(256)) * 99,
    "utf16.jsonl": "{\n".encode("utf-16"),
    "deep.jsonl": b"[" * 300_000,
}


def test_files_of_other_kinds_stop_no_job(days, sandbox, caplog):
    monday, tuesday = days
    monday.run(ROWS)
    for name, content in OTHER_FILES.items():
        (directory_of(monday) / name).write_bytes(content)
    os.mkfifo(directory_of(monday) / "pipe.jsonl")
    (directory_of(monday) / "directory.jsonl").mkdir()
    assert tuesday.run(ROWS).origins == Counter(cached=10)
    for name in (*OTHER_FILES, "pipe.jsonl"):
        assert len([text for text in caplog.messages if name in text]) == 1


def test_an_estimate_passes_over_wrong_entries(days, sandbox):
    monday, tuesday = days
    monday.run(ROWS)
    entries = entries_of(directory_of(monday))
    replaced(directory_of(monday), *(json.dumps(entry).encode() + b"\n" for entry in wrong_entries(entries)))
    tuesday.write(ROWS)
    found = estimate(JobSpec.parse(tuesday.spec), sample_size=3)
    assert (found["requests"], found["resumed"]) == (7, 3)


def test_an_answer_without_a_vector_stops_no_job_that_embeds(days, sandbox):
    monday, tuesday = days
    for job in days:
        job.spec["model"] |= {"name": "gemini-embedding-001"}
        job.spec |= {"task": "embed", "sink": job.spec["sink"] | {"format": "parquet"}}
    monday.run(ROWS)
    entries = entries_of(directory_of(monday))
    entries[0]["parsed"] = None
    entries[1]["parsed"] = "a text"
    entries[2]["parsed"] = [[1.0]]
    replaced(directory_of(monday), *(json.dumps(entry).encode() + b"\n" for entry in entries))
    assert tuesday.run(ROWS).origins == Counter(cached=7, fresh=3)


def test_signs_that_are_no_pattern_are_part_of_the_directory(days, sandbox, tmp_path):
    monday, tuesday = days
    state = str(tmp_path / "state{a,b}\\%5B ü")
    monday.run(ROWS, state_uri=state)
    assert tuesday.run(ROWS, state_uri=state).origins == Counter(cached=10)


def test_a_directory_that_is_a_pattern_never_reads_the_journal_of_its_neighbour(days, sandbox, tmp_path):
    monday, tuesday = days
    monday.run(ROWS, state_uri=str(tmp_path / "runs1"))
    with pytest.raises(JobSpecError, match=r"`state_uri`: must be one directory, not a glob.*Nothing was sent"):
        tuesday.run(ROWS, state_uri=str(tmp_path / "runs[1]"))
    assert len(sandbox.requests) == 10


@pytest.fixture
def _trusted(google, monkeypatch):
    # aiohttp reads SSL_CERT_FILE when it is imported.
    context = ssl.create_default_context(cafile=google.environment()["SSL_CERT_FILE"])
    monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", context)


def as_production(job: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a job that uses Google's own address, where the sandbox answers unnoticed."""
    monkeypatch.delenv("LLMBEAM_SANDBOX_URL")
    job.spec["model"] = {"type": "gemini", "name": "gemini-2.5-flash"}
    return job


@pytest.mark.usefixtures("_trusted")
def test_answers_of_the_sandbox_never_reach_production_by_a_shared_cache(days, sandbox, monkeypatch):
    monday, tuesday = days
    ended = monday.run(ROWS)
    assert ended.report["server"] == {"kind": "loopback", "origin": sandbox.url}
    ended = as_production(tuesday, monkeypatch).run(ROWS)
    assert ended.origins == Counter(fresh=10)
    assert ended.report["server"]["kind"] == "provider"
    assert ended.manifest["server"]["origin"] == "https://generativelanguage.googleapis.com:443"


@pytest.mark.usefixtures("_trusted")
def test_answers_of_the_sandbox_behind_its_proxy_never_reach_production(days, monkeypatch):
    monday, tuesday = days
    monday.spec["model"] = {"type": "gemini", "name": "gemini-2.5-flash"}
    assert monday.run(ROWS).report["server"]["kind"] == "loopback"
    assert as_production(tuesday, monkeypatch).run(ROWS).origins == Counter(fresh=10)


@pytest.mark.usefixtures("_trusted")
def test_what_was_paid_for_in_production_is_used_everywhere(days, sandbox, monkeypatch):
    monday, tuesday = days
    as_production(monday, monkeypatch).run(ROWS)
    assert tuesday.run(ROWS).origins == Counter(cached=10)
    assert len(sandbox.requests) == 10


def test_the_log_names_the_server(job, sandbox, caplog):
    caplog.set_level(logging.INFO, "llmbeam")
    job.run(ROWS)
    assert f"server loopback ({sandbox.url}), journal" in caplog.text


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_reads_the_state_of_a_job(job, sandbox):
    job.write([*ROWS, "no row"])
    estimate(JobSpec.parse(job.spec), sample_size=1)
    job.run()
    assert mode_of(job.out / ".llmbeam") == 0o700
    names = ("report.json", "estimate.json", "dead_letter-00000-of-00001.jsonl")
    assert {name: oct(mode_of(job.out / name)) for name in names} == dict.fromkeys(names, "0o600")


def test_the_answers_keep_the_umask(job, sandbox):
    before = os.umask(0o027)
    try:
        job.run(ROWS)
    finally:
        os.umask(before)
    assert mode_of(job.out) == 0o750
    assert mode_of(job.out / "answers-00000-of-00001.jsonl") == 0o640


def test_nobody_else_reads_the_cache(days, sandbox, tmp_path):
    days[0].run(ROWS)
    assert mode_of(tmp_path / "state" / "cache") == 0o700
    assert mode_of(tmp_path / "state" / "monday") == 0o700


def test_a_directory_that_was_shared_on_purpose_stays_shared(days, sandbox, tmp_path):
    (shared := tmp_path / "state" / "cache").mkdir(parents=True)
    shared.chmod(0o2770)
    days[0].run(ROWS)
    assert mode_of(shared) == 0o2770


def test_a_directory_of_state_that_cannot_be_made_is_refused_before_a_request(days, sandbox, tmp_path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(
        JobSpecError, match=r"state/cache/' holds the state of jobs.* Nothing was sent or billed\."
    ):
        days[0].run(ROWS)
    assert len(sandbox.requests) == 0
