"""Audit records of batch inference: its results name no rows, so the request files have an index of them."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam

from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.audit.record import key_hashes
from airflow_provider_llmbeam.pipeline.audit.trail import AuditTrail
from airflow_provider_llmbeam.pipeline.elements import Request
from airflow_provider_llmbeam.pipeline.privacy.vault import masked_in

#: Records of one file.
_FILE_RECORDS = 10_000

#: The fingerprint and the outcome of a request; `None` for a line that is no result.
_Result = tuple[str, Outcome | None]


class _Rows(NamedTuple):
    """What the index has of the rows of a request: hashes of their keys, and numbers of masked values by kind."""

    hashes: Sequence[str]
    masked: dict[str, int]


class IndexRows(beam.DoFn):
    """Writes the row keys of each `Request`, as hashes, and what is masked in its prompt, to files in a directory.

    Args:
        directory: The directory; ends in `/`.
        key: Key columns of the source.
    """

    def __init__(self, directory: str, key: tuple[str, ...]) -> None:
        super().__init__()
        self._directory = directory
        self._key = key
        self._lines: list[str] = []

    def process(self, request: Request) -> None:
        """Adds one request."""
        rows = _Rows(key_hashes(request.rows, self._key), masked_in(request.prompt, request.rows))
        self._lines.append(json.dumps((request.fingerprint, *rows)))

    def finish_bundle(self) -> None:
        """Writes the file of the bundle; a repeated bundle writes the same lines again."""
        if self._lines:
            storage.replace(f"{self._directory}rows-{uuid.uuid4().hex}.jsonl", "\n".join(self._lines).encode())
            self._lines = []


class AuditResults(beam.PTransform):
    """Writes the audit records of the results of one batch-inference job, and outputs the results.

    The name of a file follows from the job and the number of the file, so that results which are read again after
    a crash get no second record.

    Args:
        trail: The trail of the job.
        directory: The directory that `IndexRows` wrote; ends in `/`.
        job_id: Identity of the batch-inference job.
        rows: Number of its requests.
        since: Unix time before which the job had no results.
    """

    def __init__(self, trail: AuditTrail, directory: str, job_id: str, rows: int, since: float) -> None:
        super().__init__()
        self._write = _WriteRecords(trail, job_id, since)
        self._pattern = f"{directory}rows-*.jsonl"
        self._files = rows // _FILE_RECORDS + 1

    def expand(self, results: beam.PCollection) -> beam.PCollection:
        """Joins the results with the index of the rows."""
        index = (
            results.pipeline | "RowIndex" >> beam.Create([self._pattern]) | "IndexLines" >> beam.FlatMap(_index)
        )
        return (
            {"results": results, "rows": index}
            | "RowsOfResults" >> beam.CoGroupByKey()
            | "ByFile" >> beam.FlatMap(_assign_file, self._files)
            | "GroupFiles" >> beam.GroupByKey()
            | "WriteRecords" >> beam.ParDo(self._write)
        )


def _index(pattern: str) -> Iterator[tuple[str, _Rows]]:
    for uri in storage.match(pattern):
        for line in storage.read(uri).decode().splitlines():
            fingerprint, *rows = json.loads(line)
            yield fingerprint, _Rows(*rows)


def _assign_file(
    group: tuple[str, dict[str, Iterable[Any]]], files: int
) -> Iterator[tuple[int, tuple[str, _Rows, Outcome | None]]]:
    fingerprint, found = group
    rows = list(found["rows"])
    hashes = tuple(sorted({each for one in rows for each in one.hashes}))
    number = int(fingerprint[:12], 16) % files if fingerprint else 0
    for result in found["results"]:
        yield number, (fingerprint, _Rows(hashes, rows[0].masked if rows else {}), result)


class _WriteRecords(beam.DoFn):
    def __init__(self, trail: AuditTrail, job_id: str, since: float) -> None:
        super().__init__()
        self._trail = trail
        self._job_id = job_id
        self._since = since

    def process(self, group: tuple[int, Iterable[tuple[str, _Rows, Outcome | None]]]) -> Iterator[_Result]:
        number, results = group[0], list(group[1])
        name = hashlib.sha256(f"{self._job_id}\n{number}".encode()).hexdigest()[:32]
        lines = [
            self._trail.line(outcome, fingerprint, rows.hashes, "batch", rows.masked)
            for fingerprint, rows, outcome in results
            if fingerprint and outcome is not None
        ]
        if lines and not self._trail.has_file(name, self._since):
            storage.replace(self._trail.new_uri(name), b"".join(lines))
        yield from ((fingerprint, outcome) for fingerprint, _, outcome in results)
