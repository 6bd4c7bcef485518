"""The rows, machines and requests of a job, and what was measured of one process."""

from __future__ import annotations

from dataclasses import dataclass

#: Requests per second of one process at a latency of 200 ms and 128 in flight, while client and server shared two
#: slow cores: 93 % of the 640 that the latency allows (`scripts/bench`, job D, 22 November 2026).
PROCESS_REQUESTS_PER_SECOND = 595.0
#: Memory of an answer in the index of a process (`engine.journal.Journal`), in bytes.
INDEX_BYTES = 8
#: Measured on 25 November 2026 with a prompt of 800 and an answer of 200 characters: a request and a response with
#: their headers, and a line of the journal, in bytes; and the time to read such a line, in seconds (least of 15,
#: on a busy core).
REQUEST_BYTES, RESPONSE_BYTES, ENTRY_BYTES = 1182, 749, 629
READ_ENTRY_SECONDS = 12.7e-6
#: Time of one operation of an object store, in seconds: see `engine.unstored`.
OPERATION_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class FleetCase:
    """A job on many machines.

    Attributes:
        rows: Number of rows, each with a prompt of its own.
        workers: Number of machines, of which each has its own governor.
        processes_per_worker: Number of processes of a machine; one per core.
        requests_per_minute: The quota.
        max_in_flight: `limits.max_in_flight`, of each process.
        latency_seconds: Mean latency of an answer.
        input_tokens: Input tokens of a row.
        output_tokens: Output tokens of a row.
        batch_rows: `batching.max_batch_size`.
    """

    rows: int
    workers: int
    requests_per_minute: float
    max_in_flight: int
    processes_per_worker: int = 4
    latency_seconds: float = 2.7
    input_tokens: int = 200
    output_tokens: int = 50
    batch_rows: int = 8192

    @property
    def processes(self) -> int:
        """Number of processes."""
        return self.workers * self.processes_per_worker

    @property
    def requests_per_second(self) -> float:
        """Requests per second of the quota."""
        return self.requests_per_minute / 60

    @property
    def quota_seconds(self) -> float:
        """Time in which the quota admits all rows, in seconds."""
        return self.rows / self.requests_per_second

    @property
    def process_rows_per_second(self) -> float:
        """Rows per second of one process at the quota."""
        return self.requests_per_second / self.processes


#: 100 million rows on 50 machines.
HUNDRED_MILLION = FleetCase(rows=100_000_000, workers=50, requests_per_minute=1_000_000, max_in_flight=256)
#: An hour at 150,000 requests per second; each process at half of what one was measured to send.
PAPER = FleetCase(rows=150_000 * 3600, workers=127, requests_per_minute=150_000 * 60, max_in_flight=1024)
