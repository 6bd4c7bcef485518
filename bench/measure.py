"""Computes the figures of one run from the server's request log and the returned answers.

Definitions:

- `requests` counts every call of a generate method, 429s included.
- `lost` is the number of rows without an answer, or with the answer of another row.
- `paid_twice` is the number of answers computed beyond one per distinct prompt; `paid_again_ratio` is that number
  over the number of answers that were paid for when the job was killed.
- `utilisation` is the admitted amount (requests, or tokens in and out) over the amount that the quota refilled
  between the arrivals of the first and the last request. It is at most 1, so that the two seconds' worth that the
  server's bucket initially holds does not favour a client that uses it at once. Nothing else is excluded.
- `rows_per_second` is measured from the start of the process to its end, `rows_per_second_sending` from the
  arrival of the first request to the last answer; `latency_limit_ratio` is the latter over
  `max_in_flight / latency`.
- `makespan_ratio` is the time that the static-batch server was in use over the time of a server without padding.
- `client_cpu_seconds` and `server_cpu_seconds` are processor time, to interpret figures from a busy machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llmbeam_sandbox.core.records import RequestRecord

from bench.jobs import Job
from bench.rows import Row, input_tokens

TOO_MANY_REQUESTS = 429
OK = 200


@dataclass(kw_only=True)
class Measurement:
    """One run of one contender on one job.

    Attributes:
        job: Letter of the job.
        contender: Name of the contender.
        processes: Number of worker processes.
        repeat: Number of the repeat, starting at 0.
        rows: Number of input rows.
        figures: Figures by name, as defined in the docstring of the module.
        admitted_per_second: Number of requests admitted in each second after the first arrival.
        rejected_per_second: Number of 429s in each second after the first arrival.
        failure: Reason why the run failed; "" if it succeeded.
    """

    job: str
    contender: str
    processes: int
    repeat: int
    rows: int
    figures: dict[str, float] = field(default_factory=dict)
    admitted_per_second: list[int] = field(default_factory=list)
    rejected_per_second: list[int] = field(default_factory=list)
    failure: str = ""

    @property
    def case(self) -> tuple[str, int]:
        """Letter of the job and number of worker processes."""
        return self.job, self.processes


def answer_figures(
    rows: Sequence[Row], answers: Mapping[str, str | None], *, is_text_checked: bool
) -> dict[str, float]:
    """Counts the lost rows."""
    lost = sum(
        not (answer := answers.get(str(row["id"]))) or (is_text_checked and not is_answer_to(row, answer))
        for row in rows
    )
    return {"lost": lost}


def is_answer_to(row: Row, answer: str) -> bool:
    """Returns whether an answer is to this row: the sandbox and the echo model repeat the first word of a row."""
    return answer.split(maxsplit=1)[:1] == row["text"].split(maxsplit=1)[:1]


def request_figures(job: Job, rows: Sequence[Row], records: Sequence[RequestRecord]) -> dict[str, float]:
    """Computes the figures that follow from the server's request log."""
    if not records:
        return {"requests": 0}
    billed = [record for record in records if record.is_billed]
    rejected = sum(record.http_status == TOO_MANY_REQUESTS for record in records)
    figures: dict[str, float] = {
        "requests": len(records),
        "answered": len(billed),
        "rejected": rejected,
        "other_errors": sum(record.http_status not in (OK, TOO_MANY_REQUESTS) for record in records),
        "rejected_ratio": rejected / len(records),
        "requests_per_row": len(records) / len(rows),
        "requests_per_prompt": len(records) / len({row["text"] for row in rows}),
        "paid_twice": paid_twice(records),
    }
    return figures | _rates(job, records, billed)


def paid_twice(records: Sequence[RequestRecord]) -> int:
    """Counts the computed answers beyond one per distinct prompt."""
    prompts = Counter(record.prompt_sha256 for record in records if record.is_billed)
    return prompts.total() - len(prompts)


def _rates(job: Job, records: Sequence[RequestRecord], billed: Sequence[RequestRecord]) -> dict[str, float]:
    first = min(record.received_at for record in records)
    arrival_seconds = max(record.received_at for record in records) - first
    sending_seconds = max(record.answered_at or record.received_at for record in records) - first
    figures = {"sending_seconds": sending_seconds}
    if sending_seconds > 0 and not job.is_killed:
        figures["rows_per_second_sending"] = len(billed) / sending_seconds
    server = job.server
    if server is None or arrival_seconds <= 0:
        return figures
    if server.latency_seconds and "rows_per_second_sending" in figures:
        limit = job.known_limits.max_in_flight / server.latency_seconds
        figures["latency_limit_ratio"] = figures["rows_per_second_sending"] / limit
    if server.requests_per_minute is not None:
        figures["utilisation"] = min(1.0, len(billed) / server.available_requests(arrival_seconds))
    if server.tokens_per_minute is not None:
        tokens = sum(record.input_tokens + record.output_tokens for record in billed)
        figures["utilisation"] = min(1.0, tokens / (server.tokens_per_minute / 60 * arrival_seconds))
    return figures


def padding_figures(job: Job, rows: Sequence[Row], reported: Mapping[str, float]) -> dict[str, float]:
    """Adds the makespan ratio to the figures that a contender reported; the ideal is a server without padding."""
    figures = dict(reported)
    if job.padded_tokens_per_second and "sending_seconds" in reported:
        ideal_seconds = input_tokens(list(rows)) / job.padded_tokens_per_second
        figures["makespan_ratio"] = reported["sending_seconds"] / ideal_seconds
    return figures


def per_second(records: Sequence[RequestRecord], *, rejected: bool) -> list[int]:
    """Counts the requests, rejected or admitted, that arrived in each second after the first arrival."""
    if not records:
        return []
    first = min(record.received_at for record in records)
    counts = Counter(
        int(record.received_at - first)
        for record in records
        if (record.http_status == TOO_MANY_REQUESTS) is rejected
    )
    return [counts[second] for second in range(max(counts, default=-1) + 1)]
