"""Makes golden rows of what people say of answers."""

from __future__ import annotations

import logging
from typing import Any, Literal

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.lease import MERGE_SECONDS, wait_for_lease
from airflow_provider_llmbeam.pipeline.measure.evaluation.rows import MAX_ROWS, KeyedRows, golden_rows, rows_so_far
from airflow_provider_llmbeam.pipeline.measure.review.fields import AnswerFields
from airflow_provider_llmbeam.pipeline.measure.review.sample import golden_record
from airflow_provider_llmbeam.pipeline.records import encode_record
from airflow_provider_llmbeam.spec.evaluation import GoldenAddition, Verdict
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import FilesSource

_log = logging.getLogger("llmbeam")

#: Column of a golden row that says who made it of what.
REVIEW = "llmbeam_review"

Decision = Literal["accepted", "corrected", "left_out"]


def add_golden_rows(spec: JobSpec, addition: GoldenAddition) -> dict[str, Any]:
    """Adds the rows of verdicts to a file of golden rows, and replaces those with the same key.

    The file has its old rows or all new ones; of several processes one after the other adds its own.

    Args:
        spec: The job whose answers were reviewed.
        addition: The verdicts and the file.

    Returns:
        The manifest: `golden_uri`, `rows` in the file, and the numbers of verdicts by what follows from them.

    Raises:
        JobSpecError: A corrected value can be no answer, or a row was not in its sample; nothing was written.
        JobFailedError: Other processes have been writing the file for too long.
    """
    fields = AnswerFields(spec.prompt.output_schema)
    verdicts = {verdict.key: verdict for verdict in addition.verdicts}
    samples = {uri: _rows(spec, uri) for uri in dict.fromkeys(verdict.review_uri for verdict in verdicts.values())}
    counts = dict.fromkeys(("accepted", "corrected", "left_out"), 0)
    reviewed: dict[str, Row] = {}
    for key, verdict in verdicts.items():
        row = samples[verdict.review_uri].get(key)
        if row is None:
            raise JobSpecError(
                f"`verdicts`: the sample {verdict.review_uri!r} has no row {key}; it was replaced since the "
                "review. Clear the tasks of the review as well. Nothing was written, sent or billed."
            )
        decision = decide(fields, row, verdict)
        counts[decision] += 1
        if decision != "left_out":
            reviewed[key] = _golden_row(row, verdict, decision)
    uri = addition.golden_uri
    name = uri.rpartition("/")[2]
    held = (
        f"`golden_uri` {uri!r}: other processes have been writing it for {MERGE_SECONDS:.0f} s. Nothing was "
        "written, sent or billed; a retry needs no new review."
    )
    with wait_for_lease(spec, f"{uri.removesuffix(name)}.llmbeam/{name}.lease", held):
        rows = {**rows_so_far(spec, FilesSource(uri=uri, key=spec.source.key)), **reviewed}
        if len(rows) > MAX_ROWS:
            raise JobSpecError(
                f"`golden_uri` {uri!r} would have {len(rows):,} rows, and an evaluation answers at most "
                f"{MAX_ROWS:,}. Name another file. Nothing was written, sent or billed."
            )
        if reviewed:
            storage.replace(uri, b"".join(map(encode_record, rows.values())), is_private=False)
    _log.info(
        "The golden set %r has %d rows. %d answers were accepted, %d corrected and %d left out.",
        uri,
        len(rows),
        *counts.values(),
    )
    return {"golden_uri": uri, "rows": len(rows), **counts}


def decide(fields: AnswerFields, row: Row, verdict: Verdict) -> Decision:
    """Decides what follows from a verdict.

    Args:
        fields: The fields of the answers.
        row: Row of the sample, with the values of the answer.
        verdict: The verdict.

    Raises:
        JobSpecError: A corrected value can be no part of an answer.
    """
    if not verdict.is_accepted:
        return "left_out"
    corrected = {name: value for name, value in verdict.values.items() if value != row.get(f"expected_{name}")}
    fields.check("verdicts", corrected)
    if corrected and (mismatch := fields.mismatch(corrected)) is not None:
        raise JobSpecError(
            f"`verdicts`: the corrected answer of row {verdict.key} does not match `prompt.output_schema`: "
            f"{mismatch}. Clear the task of this review, and answer it again. Nothing was written, sent or billed."
        )
    return "corrected" if corrected else "accepted"


def _golden_row(row: Row, verdict: Verdict, decision: Decision) -> Row:
    review = {"verdict": decision, "by": verdict.reviewed_by, "at": verdict.reviewed_at}
    return golden_record(row, verdict.values) | {REVIEW: review}


def _rows(spec: JobSpec, review_uri: str) -> KeyedRows:
    if not storage.exists(review_uri):
        raise JobSpecError(
            f"`verdicts`: the sample {review_uri!r} does not exist any more. Clear the tasks of the sample and of "
            "the review. Nothing was written, sent or billed."
        )
    return golden_rows(spec, FilesSource(uri=review_uri, key=spec.source.key))
