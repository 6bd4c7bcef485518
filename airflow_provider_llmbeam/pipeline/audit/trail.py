"""The audit trail of a job: it writes the record of a prompt before the journal has its answer."""

from __future__ import annotations

import threading
import time
import uuid
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, Self

from airflow_provider_llmbeam.engine.journal.journal import BatchJournal
from airflow_provider_llmbeam.engine.journal.segment_writer import AppendingWriter, SegmentWriter, UploadingWriter
from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.audit.record import encode_outcome, key_hashes, requester_of
from airflow_provider_llmbeam.pipeline.elements import Request
from airflow_provider_llmbeam.pipeline.privacy.vault import masked_in
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import FilesAudit


class _NewObjects(UploadingWriter):
    """Writes each upload to an object of its own, which is never replaced or deleted: a bucket may forbid it."""

    SEGMENT_SECONDS = 0.0


@dataclass(frozen=True)
class AuditTrail:
    """What the records of a job have in common, and where they are written.

    Attributes:
        directory: Directory of the records; ends in `/`.
        requester: See `requester_of`.
        key: Key columns of the source.
        includes_text: Whether a record has the texts of prompt and answer.
        has_privacy: Whether personal data is masked.
        by_date: Whether there is a directory for each day.
    """

    directory: str
    requester: Mapping[str, Any]
    key: tuple[str, ...]
    includes_text: bool
    has_privacy: bool
    by_date: bool

    @classmethod
    def of(cls, spec: JobSpec) -> Self | None:
        """Returns the trail of a job, which this process launches; `None` without an audit."""
        audit, directory = spec.safety.audit, spec.paths.audit_uri
        if audit is None or directory is None:
            return None
        return cls(
            directory,
            requester_of(spec),
            spec.source.key,
            includes_text=audit.include_text,
            has_privacy=spec.safety.privacy is not None,
            by_date=isinstance(audit, FilesAudit),
        )

    def record(self, requests: Mapping[Prompt, Request], journal: BatchJournal) -> AuditedRecord:
        """Opens the record of one batch.

        Args:
            requests: The batch, by prompt; complete when the outcome of a prompt is recorded.
            journal: Its journal.
        """
        return AuditedRecord(self, requests, journal, self.open_writer())

    def line(
        self,
        outcome: Outcome,
        fingerprint: str,
        row_key_hashes: Iterable[str],
        origin: Literal["online", "batch"],
        masked: Mapping[str, int] | None,
        prompt: Prompt | None = None,
    ) -> bytes:
        """Returns the record of an outcome, as one line.

        Args:
            outcome: The outcome.
            fingerprint: Fingerprint of the prompt.
            row_key_hashes: See `encode_outcome`.
            origin: See `encode_outcome`.
            masked: Number of masked values by kind; `None` if it is not known.
            prompt: The prompt, if it is available.
        """
        texts: dict[str, str | None] = {}
        if self.includes_text:
            if prompt is not None:
                texts = {"system": prompt.system, "prompt": prompt.text}
            texts["answer"] = outcome.text if isinstance(outcome, Completion) else None
        masked = masked if self.has_privacy else None
        return encode_outcome(
            outcome, self.requester, fingerprint, row_key_hashes, origin, masked, texts, time.time()
        )

    def new_uri(self, name: str = "") -> str:
        """Returns the address of a new file.

        Args:
            name: What identifies it among the files of the job; empty for a random name.
        """
        day = f"date={datetime.now(UTC):%Y-%m-%d}/" if self.by_date else ""
        return f"{self.directory}{day}{self.requester['job']}-{name or uuid.uuid4().hex}.jsonl"

    def has_file(self, name: str, since: float) -> bool:
        """Returns whether the file of a name was written.

        Args:
            name: See `new_uri`.
            since: Unix time before which it was not; the records of earlier days, of all jobs, are not listed.
        """
        # A pattern is listed, which the account of the job may do; to read an object needs another right.
        file = f"{self.requester['job']}-{name}.jsonl*"
        if not self.by_date:
            return storage.has_match(f"{self.directory}{file}")
        first, last = (datetime.fromtimestamp(each, UTC).date() for each in (since, time.time()))
        days = (first + timedelta(days=number) for number in range((last - first).days + 1))
        return any(storage.has_match(f"{self.directory}date={day}/{file}") for day in days)

    def open_writer(self) -> SegmentWriter:
        """Opens what writes records."""

        def new_segment() -> tuple[str, array[int]]:
            return self.new_uri(), array("q")

        if storage.is_local(self.directory):
            return AppendingWriter(new_segment, partial(storage.create, is_private=True))
        return _NewObjects(new_segment, storage, time.monotonic)


def record_of(
    trail: AuditTrail | None, examples: Sequence[Any]
) -> Callable[[BatchJournal], AuditedRecord | BatchJournal] | None:
    """Returns what makes the record of a batch from its journal; `None` if that is the journal as it is.

    Args:
        trail: The trail of the job; `None` without an audit.
        examples: The batch; with an audit, or if they are verdicts, `Request`s.
    """
    about = {each.fingerprint: each.about for each in examples if isinstance(each, Request) and each.about}

    def record(journal: BatchJournal) -> AuditedRecord | BatchJournal:
        if about:
            journal.about = about
        return journal if trail is None else trail.record({each.prompt: each for each in examples}, journal)

    return record if about or trail is not None else None


class AuditedRecord:
    """The record of one batch with an audit; an engine `Record`.

    An outcome counts as stored once both the audit and the journal have it. The journal takes it only when the
    audit has stored its record: an answer that a later attempt finds in the journal has a record.

    Args:
        trail: The trail of the job.
        requests: The batch, by prompt.
        journal: The journal of the batch.
        writer: Writer of the audit records of the batch.
    """

    def __init__(
        self, trail: AuditTrail, requests: Mapping[Prompt, Request], journal: BatchJournal, writer: SegmentWriter
    ) -> None:
        self.earlier = journal.earlier
        self._trail = trail
        self._requests = requests
        self._journal = journal
        self._writer = writer
        self._lock = threading.Lock()
        # Outcomes that the journal does not have yet: the last `self._writer.unstored` ones have no stored record.
        self._waiting: list[tuple[Prompt, Outcome]] = []

    @property
    def unstored(self) -> int:
        """Number of outcomes that are lost, from the audit or the journal, if the process is killed now."""
        with self._lock:
            return len(self._waiting) + self._journal.unstored

    @property
    def max_unstored_seconds(self) -> float:
        """Longest time for which an outcome may wait for others, to be stored with them."""
        return self._journal.max_unstored_seconds

    def open(self) -> None:
        """Makes sure that outcomes can be recorded, before the first request.

        Raises:
            JobFailedError: They cannot.
        """
        self._journal.open()
        try:
            self._writer.open()
        except Exception as error:
            raise self._error(error, "Nothing of this batch was sent.") from error

    def sent(self) -> None:
        """Does nothing: a prompt has one record, with the number of its requests."""

    def rejected(self, hold_seconds: float) -> None:
        """Does nothing: see `sent`."""

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        """Takes the outcome of a prompt; one that was not sent has no record."""
        if not was_sent(outcome):
            self._journal.finished(prompt, outcome)
            return
        request = self._requests[prompt]
        hashes = key_hashes(request.rows, self._trail.key)
        masked = masked_in(prompt, request.rows) if request.rows else None
        line = self._trail.line(outcome, request.fingerprint, hashes, "online", masked, prompt)
        with self._lock:
            self._waiting.append((prompt, outcome))
            self._writer.write(0, line)

    def store(self, *, is_last: bool = False) -> Future[None] | None:
        """Stores all outcomes so far, or begins to do so, see `Record.store`: first in the audit.

        Raises:
            Exception: Error of a filesystem.
        """
        audited = self._writer.store(is_last=is_last)
        if audited is None:
            return self._store_audited(is_last)
        stored: Future[None] = Future()

        def then(_: Future[None]) -> None:
            try:
                audited.result()
                journaled = self._store_audited(is_last)
            except Exception as error:  # noqa: BLE001 - the engine raises it
                stored.set_exception(error)
                return
            if journaled is None:
                stored.set_result(None)
            else:
                journaled.add_done_callback(partial(_end, stored))

        audited.add_done_callback(then)
        return stored

    def close(self) -> None:
        """Stores all outcomes.

        Raises:
            JobFailedError: Outcomes that were paid for could not be recorded.
        """
        try:
            self._writer.close()
        except Exception as error:
            raise self._error(
                error,
                f"Nothing more is sent; {self._writer.unstored} outcomes of this batch, which may be billed, are "
                "neither in the audit nor in the journal.",
            ) from error
        finally:
            self._give_audited()
            self._journal.close()

    def _give_audited(self) -> None:
        """Gives the journal the outcomes whose records are stored."""
        with self._lock:
            audited = len(self._waiting) - self._writer.unstored
            for prompt, outcome in self._waiting[:audited]:
                self._journal.finished(prompt, outcome)
            del self._waiting[:audited]

    def _store_audited(self, is_last: bool) -> Future[None] | None:
        self._give_audited()
        return self._journal.store(is_last=is_last)

    def _error(self, error: Exception, state: str) -> JobFailedError:
        return JobFailedError(
            f"The audit in {self._trail.directory!r} cannot be written: {error}. {state} Make room or grant "
            "access there; a retry sends what the journal does not have."
        )


def was_sent(outcome: Outcome) -> bool:
    """Returns whether any request was sent for a prompt."""
    return not isinstance(outcome, Failure) or bool(outcome.attempts or outcome.rejections or outcome.sheds)


def _end(stored: Future[None], journaled: Future[None]) -> None:
    if error := journaled.exception():
        stored.set_exception(error)
    else:
        stored.set_result(None)
