"""Traces of a job: which of its rows are spans, and where people open them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.base import SpecModel

#: The place of the id in `Traces.url`.
TRACE_ID = "{trace_id}"
#: Most rows of each of the four reasons: the exporter of OpenTelemetry queues 2,048 spans, and drops more
#: (`BatchSpanProcessor` of the SDK 1.45).
MAX_TRACED_ROWS = 500


class Traces(SpecModel):
    """Which rows are spans below the span of their job, where Airflow exports traces (`[traces] otel_on`).

    These are rows that failed, that a guard has flagged or a judge has graded, and a sample of the other rows that
    were answered in this run. A span has the hash of the row's key, as the audit has it, and no text.

    Attributes:
        sample_ratio: Ratio of the other rows, by the hash of their prompt: equal prompts are taken in each run.
        max_rows: Most spans of each reason (failed, flagged, judged, sampled); `0` for none. The rest is counted.
        include_text: Whether spans also have the row, the answer and the message of the server: masked as in the
            report, and at most 1,000 characters each.
        url: Address of a trace in a tool, with `{trace_id}`, for the link of the report.
    """

    sample_ratio: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.001
    max_rows: Annotated[int, Field(ge=0, le=MAX_TRACED_ROWS)] = MAX_TRACED_ROWS
    include_text: bool = False
    url: str | None = None

    @field_validator("url")
    @classmethod
    def _address_with_place(cls, url: str | None) -> str | None:
        if url is None:
            return None
        # It is written to the report. A path may be in the fragment, as MLflow's is.
        if "@" in url or redact(url) != url:
            raise ValueError("must hold no user and no secret, as it is written to the report")
        if TRACE_ID not in url or not url.startswith(("https://", "http://")):
            raise ValueError(f"must be an address of the web that has {TRACE_ID!r}")
        return url

    def link(self, trace_id: str) -> str | None:
        """Returns the address of a trace; `None` without `url`."""
        return None if self.url is None else self.url.replace(TRACE_ID, trace_id)
