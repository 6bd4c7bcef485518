"""Where rows come from."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.formats import FileFormat, format_of

#: Columns that every output row carries beside its key.
OUTPUT_COLUMNS = (
    "answer",
    "origin",
    "model",
    "fingerprint",
    "finish_reason",
    "input_tokens",
    "output_tokens",
    "attempts",
    "latency_seconds",
)


class FilesSource(SpecModel):
    """Rows in files on any filesystem that Beam reads: local, `gs://`, `s3://`, `hdfs://`.

    Attributes:
        uri: A path or a glob. Compressed files are recognised by their ending.
        format: `jsonl` (one object per line), `csv` (with a header; every value is text) or `parquet`.
            Left out, the ending of `uri` decides.
        key: The columns that name a row; every output row carries them.
    """

    type: Literal["files"] = "files"
    uri: Annotated[str, Field(min_length=1)]
    format: FileFormat | None = None
    key: Annotated[tuple[str, ...], Field(min_length=1)]

    @field_validator("key")
    @classmethod
    def _no_output_column(cls, key: tuple[str, ...]) -> tuple[str, ...]:
        if taken := sorted(set(key) & set(OUTPUT_COLUMNS)):
            raise ValueError(f"{taken} would be overwritten: every output row has columns of that name")
        if len(set(key)) < len(key):
            raise ValueError("must name each column once")
        return key

    @model_validator(mode="after")
    def _format_is_known(self) -> Self:
        _ = self.resolved_format
        return self

    @property
    def resolved_format(self) -> FileFormat:
        """The format given, or the one that the ending of `uri` says."""
        return self.format or format_of(self.uri)
