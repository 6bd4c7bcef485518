"""The audit trail of a job: it writes the record of a prompt before the journal has its answer."""

from __future__ import annotations

import time
import uuid
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self

from airflow_provider_llmbeam.engine.journal.journal import BatchJournal
from airflow_provider_llmbeam.engine.journal.segment_writer import AppendingWriter, SegmentWriter, UploadingWriter
from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.audit.record import AuditRecord, Requester, Texts, key_hashes
from airflow_provider_llmbeam.pipeline.elements import Request
from airflow_provider_llmbeam.pipeline.privacy.usage import masked_in
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
        requester: Who sends the prompts.
        key: Key columns of the source.
        includes_text: Whether a record has the texts of prompt and answer.
        has_privacy: Whether personal data is masked.
        by_date: Whether there is a directory for each day.
    """

    directory: str
    requester: Requester
    key: tuple[str, ...]
    includes_text: bool
    has_privacy: bool
    by_date: bool

    @classmethod
    def of(cls, spec: JobSpec) -> Self | None:
        """Returns the trail of a job, which this process launches; `None` without an audit."""
        audit, directory = spec.safety.audit, spec.audit_uri
        if audit is None or directory is None:
            return None
        return cls(
            directory,
            Requester.of(spec),
            spec.source.key,
            includes_text=audit.include_text,
            has_privacy=spec.safety.privacy is not None,
            by_date=isinstance(audit, FilesAudit),
        )

    def batch(self, requests: Sequence[Any], journal: BatchJournal) -> AuditedRecord:
        """Opens the record of one batch.

        Args:
            requests: The batch, `Request`s.
            journal: Its journal.
        """
        return self.record({request.prompt: request for request in requests}, journal)

    def record(self, requests: Mapping[Prompt, Request], journal: BatchJournal) -> AuditedRecord:
        """Opens the record of one batch.

        Args:
            requests: The batch, by prompt; complete when the outcome of a prompt is recorded.
            journal: Its journal.
        """
        return AuditedRecord(self, requests, journal, self._writer())

    def line(
        self,
        outcome: Outcome,
        fingerprint: str,
        row_key_hashes: tuple[str, ...],
        origin: Literal["online", "batch"],
        masked: Mapping[str, int] | None,
        prompt: Prompt | None = None,
    ) -> bytes:
        """Returns the record of an outcome, as one line.

        Args:
            outcome: The outcome.
            fingerprint: Fingerprint of the prompt.
            row_key_hashes: See `AuditRecord`.
            origin: See `AuditRecord`.
            masked: Number of masked values by kind; `None` if it is not known.
            prompt: The prompt, if it is at hand.
        """
        texts = Texts()
        if self.includes_text:
            sent = Texts() if prompt is None else Texts(prompt.system, prompt.text)
            texts = sent._replace(answer=outcome.text if isinstance(outcome, Completion) else None)
        masked = masked if self.has_privacy else None
        return AuditRecord.of(
            outcome, self.requester, fingerprint, row_key_hashes, origin, masked, texts, time.time()
        ).line()

    def new_uri(self, name: str = "") -> str:
        """Returns the address of a new file.

        Args:
            name: What identifies it among the files of the job; empty for a random name.
        """
        day = f"date={datetime.now(UTC):%Y-%m-%d}/" if self.by_date else ""
        return f"{self.directory}{day}{self.requester.job}-{name or uuid.uuid4().hex}.jsonl"

    def has_file(self, name: str) -> bool:
        """Returns whether the file of a name was written, on any day."""
        day = "date=*/" if self.by_date else ""
        return storage.has_match(f"{self.directory}{day}{self.requester.job}-{name}.jsonl")

    def _writer(self) -> SegmentWriter:
        def new_segment() -> tuple[str, array[int]]:
            return self.new_uri(), array("q")

        if storage.is_local(self.directory):
            return AppendingWriter(new_segment, storage)
        return _NewObjects(new_segment, storage, time.monotonic)


class AuditedRecord:
    """The record of one batch with an audit; an engine `Record`.

    An outcome counts as stored once both the audit and the journal have it, and the audit is first: an answer that
    a later attempt finds in the journal has a record.

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

    @property
    def unstored(self) -> int:
        """Number of outcomes that are lost, from the audit or the journal, if the process is killed now."""
        return max(self._journal.unstored, self._writer.unstored)

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
        self._journal.finished(prompt, outcome)
        if was_sent(outcome):
            request = self._requests[prompt]
            hashes = key_hashes(request.rows, self._trail.key)
            masked = masked_in(prompt, request.rows) if request.rows else None
            line = self._trail.line(outcome, request.fingerprint, hashes, "online", masked, prompt)
            self._writer.write(0, line)

    def store(self, *, is_last: bool = False) -> Future[None] | None:
        """Stores all outcomes so far, or begins to do so, see `Record.store`: first in the audit.

        Raises:
            Exception: Error of a filesystem.
        """
        audited = self._writer.store(is_last=is_last)
        stored = self._journal.store(is_last=is_last)
        if audited is None or stored is None:
            return audited or stored
        return _both(audited, stored)

    def close(self) -> None:
        """Stores all outcomes.

        Raises:
            JobFailedError: Outcomes that were paid for could not be recorded.
        """
        try:
            self._writer.close()
        except Exception as error:
            raise self._error(error, "Nothing more is sent; some records of this batch are missing.") from error
        finally:
            self._journal.close()

    def _error(self, error: Exception, state: str) -> JobFailedError:
        return JobFailedError(
            f"The audit in {self._trail.directory!r} cannot be written: {error}. {state} Make room or grant "
            "access there; a retry sends what the journal does not have."
        )


def was_sent(outcome: Outcome) -> bool:
    """Returns whether any request was sent for a prompt."""
    return not isinstance(outcome, Failure) or bool(outcome.attempts or outcome.rejections or outcome.sheds)


def _both(first: Future[None], second: Future[None]) -> Future[None]:
    """Returns the end of two uploads, with the error of one of them."""
    ended: Future[None] = Future()

    def end(_: Future[None]) -> None:
        if error := first.exception() or second.exception():
            ended.set_exception(error)
        else:
            ended.set_result(None)

    first.add_done_callback(lambda _: second.add_done_callback(end))
    return ended
