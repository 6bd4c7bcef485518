"""Where answers go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from airflow_provider_llmbeam.spec.base import SpecModel


class FilesSink(SpecModel):
    """A directory on any filesystem that Beam writes.

    It receives `answers-*.jsonl` or `answers-*.parquet`, `dead_letter-*.jsonl` (always JSON lines: failed rows
    have no common schema) and `report.json`. All are written aside and moved in when the job is complete.

    Attributes:
        uri: The directory; it is created. Two jobs must not share one.
        format: `jsonl` or `parquet`. In Parquet a structured answer is JSON text.
        shards: How many answer files. One is right up to some millions of rows.
    """

    type: Literal["files"] = "files"
    uri: Annotated[str, Field(min_length=1)]
    format: Literal["jsonl", "parquet"] = "jsonl"
    shards: Annotated[int, Field(ge=1, le=1000)] = 1

    @field_validator("uri")
    @classmethod
    def _plain_directory(cls, uri: str) -> str:
        uri = uri.strip()
        if not uri:
            raise ValueError("must name a directory")
        if any(sign in uri for sign in "*?["):
            raise ValueError("must be one directory, not a glob")
        return uri if uri.endswith("/") else f"{uri}/"
