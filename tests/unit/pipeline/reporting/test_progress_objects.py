from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from llmbeam_sandbox import Sandbox
from waiting import until

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.reporting import progress_objects
from airflow_provider_llmbeam.pipeline.reporting.progress import PROGRESS, shown_progress
from airflow_provider_llmbeam.pipeline.reporting.progress_objects import (
    ProgressReader,
    ProgressWriter,
    batch_ended,
    publish_progress,
)
from airflow_provider_llmbeam.spec.protocol.counts import Counts


@pytest.fixture(params=["local", "gs"])
def folder(
    request: pytest.FixtureRequest, credentials: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    if request.param == "local":
        yield f"{tmp_path}/progress/"
        return
    with Sandbox(buckets=("rows",)) as sandbox:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", sandbox.authorized_url)
        yield "gs://rows/progress/"


@pytest.fixture(autouse=True)
def _this_process_is_a_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    PROGRESS.reset()
    monkeypatch.setattr(progress_objects, "_writer", None)
    yield
    if progress_objects._writer is not None:
        progress_objects._writer.close()
    PROGRESS.reset()


def work(prefix: str | None, counts: Counts) -> None:
    """Counts as a worker process does that has counted something else before."""
    assert prefix is not None
    writer = ProgressWriter(prefix)
    PROGRESS.add(counts)
    writer.close()


def test_the_counts_of_all_workers_are_added_up_and_their_objects_deleted_at_the_end(folder: str) -> None:
    with ProgressReader(folder) as reader:
        assert reader.counts(is_final=False) == Counts()
        work(reader.prefix, Counts(rows=300))
        work(reader.prefix, Counts(answered=120, requests=125, rejections=5))
        work(reader.prefix, Counts(answered=80, requests=80))
        assert reader.counts(is_final=True) == Counts(rows=300, answered=200, requests=205, rejections=5)
        assert len(storage.match(f"{folder}*")) == 3
    assert storage.match(f"{folder}*") == []


def test_a_worker_replaces_its_object_as_its_counts_grow(folder: str) -> None:
    with ProgressReader(folder) as reader:
        writer = ProgressWriter(reader.prefix or "")
        for _ in range(3):
            PROGRESS.add(Counts(rows=100))
            writer.write()
        assert reader.counts(is_final=True) == Counts(rows=300)
        assert len(storage.match(f"{folder}*")) == 1
        writer.close()


def test_the_objects_of_an_earlier_run_are_deleted_and_its_late_workers_ignored(folder: str) -> None:
    earlier = ProgressReader(folder)
    work(earlier.prefix, Counts(rows=7))
    with ProgressReader(folder) as reader:
        assert storage.match(f"{folder}*") == []
        work(earlier.prefix, Counts(rows=9))  # a worker that outlived its launcher
        work(reader.prefix, Counts(rows=1))
        assert reader.counts(is_final=True) == Counts(rows=1)


def test_objects_are_read_every_few_seconds_and_at_the_end(
    tmp_path: Path, storage_calls: Callable[[str], list[str]]
) -> None:
    calls = storage_calls("match")
    with ProgressReader(f"{tmp_path}/") as reader:
        for is_final in (False, False, False, True):
            reader.counts(is_final)
    # The earlier objects, the first look, the last one, and those to delete.
    assert len(calls) == 4


def test_without_other_processes_no_request_is_sent(storage_calls: Callable[[str], list[str]]) -> None:
    calls = storage_calls("match")
    with ProgressReader(None) as reader:
        assert reader.counts(is_final=True) == Counts()
    assert (reader.prefix, calls) == (None, [])


def test_a_batch_that_ends_is_written_soon_and_a_hundred_that_end_are_not_each(
    tmp_path: Path, storage_calls: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_objects, "WRITE_SECONDS", 3600.0)
    monkeypatch.setattr(progress_objects, "MIN_WRITE_SECONDS", 3600.0)
    calls = storage_calls("replace")
    publish_progress(f"{tmp_path}/run-")
    for _ in range(100):
        PROGRESS.add(Counts(answered=1))
        batch_ended()
    until(lambda: calls, "the first batch is written")
    PROGRESS.add(Counts(answered=1))
    batch_ended()
    assert len(calls) == 1
    assert progress_objects._writer is not None
    progress_objects._writer.close()
    assert len(calls) == 2


def test_counts_are_written_again_and_again_while_a_batch_lasts(
    tmp_path: Path, storage_calls: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_objects, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr(progress_objects, "MIN_WRITE_SECONDS", 0.0)
    calls = storage_calls("replace")
    publish_progress(f"{tmp_path}/run-")
    for number in range(3):
        PROGRESS.add(Counts(answered=1))
        until(lambda: len(calls) > number, "the counts are written")  # noqa: B023
    assert len(set(calls)) == 1


def test_a_process_that_shows_its_counts_writes_none(
    storage_calls: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """Workers on threads of the launcher: Prism and Flink with LOOPBACK."""
    calls = storage_calls("replace")
    with shown_progress(interval_seconds=60):
        publish_progress(f"{tmp_path}/run-")
        PROGRESS.add(Counts(rows=1))
        batch_ended()
    publish_progress(None)
    assert (progress_objects._writer, calls) == (None, [])


def test_a_worker_of_a_later_job_writes_the_counts_of_that_job_alone(tmp_path: Path) -> None:
    first, second = ProgressReader(f"{tmp_path}/1/"), ProgressReader(f"{tmp_path}/2/")
    publish_progress(first.prefix)
    PROGRESS.add(Counts(rows=3))
    publish_progress(second.prefix)
    PROGRESS.add(Counts(rows=5))
    publish_progress(None)
    publish_progress(second.prefix)
    assert progress_objects._writer is not None
    progress_objects._writer.close()
    assert [reader.counts(is_final=True).rows for reader in (first, second)] == [3, 5]


def test_objects_and_their_directory_are_private(tmp_path: Path) -> None:
    work(f"{tmp_path}/progress/run-", Counts(rows=1))
    (written,) = (tmp_path / "progress").iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "progress", written)] == [0o700, 0o600]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"rows": "many"}', "\x00"])
def test_an_object_without_counts_is_passed_over(tmp_path: Path, content: str) -> None:
    with ProgressReader(f"{tmp_path}/") as reader:
        Path(f"{reader.prefix}0.json").write_text(content)
        work(reader.prefix, Counts(rows=2))
        Path(f"{reader.prefix}z.json").write_text(content)
        assert reader.counts(is_final=True) == Counts(rows=2)


def test_a_directory_that_cannot_be_used_fails_neither_worker_nor_launcher(tmp_path: Path) -> None:
    (tmp_path / "progress").write_text("a file")
    with ProgressReader(f"{tmp_path}/progress/") as reader:
        work(reader.prefix, Counts(rows=2))
        assert reader.counts(is_final=True) == Counts()


@pytest.fixture
def storage_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Returns a function that records the first argument of each call of a function of `storage`."""

    def record(name: str) -> list[str]:
        calls: list[str] = []
        real = getattr(storage, name)

        def called(first: str, *rest: object) -> object:
            calls.append(first)
            return real(first, *rest)

        monkeypatch.setattr(storage, name, called)
        return calls

    return record


def test_readers_elsewhere_know_the_addresses_of_a_run_with_a_name(folder: str) -> None:
    assert ProgressReader(folder, "5225").prefix == f"{folder}5225-"
