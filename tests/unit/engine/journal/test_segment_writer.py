"""Segments in an object store, where a file exists once it is closed."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.journal.journal import BatchJournal, Journal
from airflow_provider_llmbeam.engine.journal.segment_name import SegmentName, segment_of
from airflow_provider_llmbeam.engine.journal.segment_writer import UploadingWriter
from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobFailedError
from tests.files import ObjectStore
from tests.hostile import examples
from tests.outcomes import completion

TEXTS = [f"{number:02x}" for number in range(40)]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def answer_to(text: str) -> Completion:
    return completion(f"answer to {text}")


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def batch(store: ObjectStore, clock: Clock) -> BatchJournal:
    return batch_of(store, clock=clock)


def batch_of(store: ObjectStore, **changes: Any) -> BatchJournal:
    """Returns a batch of a process that was not there before; each text is its own fingerprint."""
    return Journal("gs://b/journal/", files=store, **changes).batch([Prompt(text) for text in TEXTS], TEXTS)


def record(batch: BatchJournal, *texts: str) -> None:
    for text in texts:
        batch.finished(Prompt(text), answer_to(text))


def stored(upload: Future[None] | None) -> None:
    assert upload is not None
    upload.result(timeout=10)


def found(store: ObjectStore) -> set[str]:
    """Returns the texts whose answers a new process finds."""
    earlier: list[Outcome | None] = batch_of(store).earlier
    assert all(known in (None, answer_to(text)) for text, known in zip(TEXTS, earlier, strict=True))
    return {text for text, known in zip(TEXTS, earlier, strict=True) if known is not None}


def test_entries_are_found_by_other_processes_once_they_are_stored(batch, store):
    record(batch, "00", "01")
    assert (found(store), batch.unstored) == (set(), 2)
    stored(batch.store())
    assert (found(store), batch.unstored) == ({"00", "01"}, 0)
    record(batch, "02")
    assert batch.unstored == 1
    stored(batch.store())
    assert found(store) == {"00", "01", "02"}
    assert len(store.objects) == 2
    batch.close()


def test_nothing_is_uploaded_twice_at_once_or_without_need(batch, store):
    assert batch.store() is None
    record(batch, "00")
    stored(batch.store())
    assert batch.store() is None
    batch.close()


def test_a_segment_that_ends_replaces_its_parts_by_one_object(batch, store, clock):
    for text in ("00", "01", "02"):
        record(batch, text)
        stored(batch.store())
    clock.now += UploadingWriter.SEGMENT_SECONDS
    record(batch, "03")
    stored(batch.store())
    (segment,) = store.objects
    assert segment == segment_of(store.uploads[0])
    assert found(store) == {"00", "01", "02", "03"}

    record(batch, "04")
    batch.close()
    assert len(store.objects) == 2
    assert found(store) == {"00", "01", "02", "03", "04"}
    assert all(SegmentName.parse(uri) for uri in store.uploads), "also the parts"


def test_the_last_answers_of_a_batch_are_uploaded_once(batch, store):
    record(batch, "00", "01")
    stored(batch.store())
    record(batch, "02")
    stored(batch.store(is_last=True))
    batch.close()
    assert len(store.uploads) == 2
    assert len(store.objects) == 1
    assert found(store) == {"00", "01", "02"}


def test_parts_are_deleted_once_their_answers_are_elsewhere(batch, store, monkeypatch):
    record(batch, "00", "01")
    stored(batch.store())
    lost = []
    monkeypatch.setattr(store, "delete", lambda uris: lost.append({"00", "01"} - found(store)))
    batch.close()
    assert lost == [set()]


def test_parts_that_cannot_be_deleted_are_read_again_and_change_nothing(batch, store):
    store.can_delete = False
    record(batch, "00", "01")
    stored(batch.store())
    batch.close()
    assert len(store.objects) == 2
    assert found(store) == {"00", "01"}


def test_a_part_that_was_completed_after_it_was_listed_is_found_in_its_segment(batch, store, monkeypatch):
    record(batch, "00", "01")
    stored(batch.store())
    listed = store.sizes("gs://b/journal/*")
    batch.close()
    monkeypatch.setattr(store, "sizes", lambda _: listed)
    assert not listed.keys() & store.objects.keys()
    assert found(store) == {"00", "01"}


def test_a_process_does_not_open_its_own_parts_for_other_prompts(store):
    process = Journal("gs://b/journal/", files=store)
    batch = process.batch([Prompt("00aa")], ["00aa"])
    record(batch, "00aa")
    stored(batch.store())
    assert process.batch([Prompt("00bb")], ["00bb"]).earlier == [None]
    assert store.opened == []
    assert process.batch([Prompt("00aa")], ["00aa"]).earlier == [answer_to("00aa")]
    batch.close()


def test_what_could_not_be_uploaded_is_uploaded_when_the_batch_is_closed(batch, store):
    store.refusals = 1
    record(batch, "00")
    with pytest.raises(OSError, match="try later"):
        stored(batch.store())
    assert batch.unstored == 1
    batch.close()
    assert found(store) == {"00"}


def test_answers_that_cannot_be_uploaded_are_counted_in_the_error(batch, store):
    record(batch, "00")
    stored(batch.store())
    record(batch, "01", "02")
    store.refusals = 1
    with pytest.raises(JobFailedError, match=r"try later.*2 answers of this batch were paid for"):
        batch.close()
    assert found(store) == {"00"}


def test_a_segment_that_cannot_be_completed_is_no_error_while_its_parts_hold_all_answers(batch, store):
    record(batch, "00", "01")
    stored(batch.store())
    store.refusals = 1
    batch.close()
    assert store.refusals == 0, "it was tried"
    assert found(store) == {"00", "01"}


@given(st.lists(st.sampled_from(["record", "store", "wait", "refuse"]), max_size=30))
@examples(1)
def test_a_kill_at_any_time_loses_what_is_counted_as_unstored_and_no_more(steps):
    store, clock = ObjectStore(), Clock()
    texts = iter(TEXTS)
    with closing(batch_of(store, clock=clock)) as batch:
        recorded = []
        for step in steps:
            match step:
                case "record":
                    recorded.append(next(texts))
                    record(batch, recorded[-1])
                case "store":
                    if (upload := batch.store()) is not None:
                        upload.exception(timeout=10)
                case "wait":
                    clock.now += 8.0
                case "refuse":
                    store.refusals = 1
            assert len(recorded) - len(found(store)) == batch.unstored
        store.refusals = 0
    assert found(store) == {*recorded}
