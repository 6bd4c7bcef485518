"""The rows whose answers a sink does not store: failed rows like all others.

A sink names them, while it publishes, by their position in the staged file, in whose order `WriteStaged` has
written their rows to a file beside it.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row
from airflow_provider_llmbeam.pipeline.privacy.masker import masker_of
from airflow_provider_llmbeam.pipeline.records import encode_record
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally, add_up
from airflow_provider_llmbeam.pipeline.transforms.write import rows_uri
from airflow_provider_llmbeam.spec.job import JobSpec


class TooManyRefusalsError(Exception):
    """The sink has refused more answers than the job may lose; what it has written is to be rolled back."""


class Refusals:
    """The answers that the sink of a job has refused.

    Args:
        spec: The job.
        tally: Sums over its rows before the publication.
        staged: The staged answers; a sink that refuses any has one file.
    """

    def __init__(self, spec: JobSpec, tally: Tally, staged: dict[int, str]) -> None:
        self._spec, self._tally, self._staged = spec, tally, staged
        self._reasons: dict[int, str] = {}

    def add(self, number: int, reason: str) -> None:
        """Records that the sink refuses an answer.

        Args:
            number: Its position in the staged file, from 0.
            reason: Why, in the words of the sink.

        Raises:
            TooManyRefusalsError: The job fails; nothing is to be published.
        """
        self._reasons[number] = reason
        failed = self._tally.failed.total() + len(self._reasons)
        if failed > self._spec.limits.max_dead_letter_ratio * self._tally.read:  # as `check_ratio`
            raise TooManyRefusalsError

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def move(self, failed: str) -> tuple[Tally, str]:
        """Returns the sums with these rows as failed ones, and the address of all failed rows.

        Args:
            failed: Address of the staged failed rows.
        """
        refused, target = Tally(), f"{self._spec.paths.staging_uri}dead_letter-{uuid.uuid4().hex}.jsonl"
        with storage.open_buffered(failed) as lines, storage.create(target, is_private=True) as file:
            file.writelines(lines)
            for row in self._rows():
                error = row["llmbeam_error"]
                refused.answered[error["origin"]] -= 1
                refused.failed["not_stored"] += 1
                refused.messages.setdefault("not_stored", error["message"])
                failure = Failure(kind="not_stored", message=error["message"], attempts=error["attempts"])
                shown = {name: value for name, value in row.items() if name != "llmbeam_error"}
                refused.samples.add_failure(FailedRow(shown, failure, error["origin"]), self._spec.source.key)
                file.write(encode_record(row))
        tally = add_up([self._tally, refused])
        tally.answered = Counter({origin: rows for origin, rows in tally.answered.items() if rows})
        return tally, target

    def _rows(self) -> Iterator[Row]:
        """Yields the refused rows as records of the dead letter."""
        (staged,) = self._staged.values()
        masker = masker_of(self._spec)
        with storage.open_buffered(rows_uri(staged)) as lines:
            for number, line in enumerate(lines):
                if (reason := self._reasons.get(number)) is not None:
                    row: Row = json.loads(line)
                    row["llmbeam_error"]["message"] = reason if masker is None else masker.message(reason)
                    yield row
