"""The review of answers by people: which answers they see, and what they say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator

from airflow_provider_llmbeam.spec.base import SpecModel, without_user
from airflow_provider_llmbeam.spec.source import StoredSource, format_of


def _json_lines(uri: str | None) -> str | None:
    """Validates the address of a file of JSON lines."""
    if without_user(uri) is None or uri is None:
        return None
    if any(sign in uri for sign in "*?["):
        raise ValueError("must be one file, not a glob")
    if not uri.endswith((".jsonl", ".ndjson")) or format_of(uri) != "jsonl":
        raise ValueError("must end in .jsonl: its rows are written as JSON lines")
    return uri


class AnswerSample(SpecModel):
    """The answers of a job that people review.

    They are selected among the rows with the smallest hashes of their keys, of which those in the golden set and
    those without an answer are left out.

    Attributes:
        rows: Number of answers.
        seed: Seed of the selection at random: the same one selects the same rows.
        stratify_by: Field of the answer of which each value gets an equal number of rows, as far as it has so
            many; `answer` for answers without fields. `None`: each row is as likely as another.
        fields: Fields of the answer that are reviewed. None: all.
        columns: Columns of the row that the reviewer sees. None: all.
        golden: Golden set whose rows are not reviewed again; its files need not exist yet.
        review_uri: File of the sample, `.jsonl`. `None`: `review.jsonl` below the state of the job.
    """

    rows: Annotated[int, Field(ge=1, le=500)] = 20
    seed: int = 0
    stratify_by: Annotated[str, Field(min_length=1)] | None = None
    fields: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    columns: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    golden: StoredSource | None = None
    review_uri: str | None = None

    _file = field_validator("review_uri")(_json_lines)


class Verdict(SpecModel):
    """What a person says of an answer.

    Attributes:
        review_uri: File of the sample that has the answer.
        key: Key of its row, as JSON.
        is_accepted: Whether the row becomes a golden row.
        values: Expected values by field: those of the answer, or what the person corrected them to.
        reviewed_by: Name of the person; `None` if nobody answered in time.
        reviewed_at: Time of the verdict, ISO 8601.
    """

    review_uri: str
    key: str
    is_accepted: bool
    values: Mapping[str, Any]
    reviewed_by: str | None = None
    reviewed_at: str | None = None


class GoldenAddition(SpecModel):
    """Golden rows that verdicts add to a golden set.

    Attributes:
        golden_uri: File of the golden set, `.jsonl`; it is created if it does not exist.
        verdicts: The verdicts; of several ones on the same row the last counts.
    """

    golden_uri: str
    verdicts: tuple[Verdict, ...]

    _file = field_validator("golden_uri")(_json_lines)
