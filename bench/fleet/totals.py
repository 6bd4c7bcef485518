"""What bounds a job on many machines, how long it takes, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from bench.fleet.case import PROCESS_REQUESTS_PER_SECOND, REQUEST_BYTES, RESPONSE_BYTES, FleetCase
from bench.fleet.journal import FleetJournal

#: Writes, with deletions, and reads, with listings, per second of a new bucket, which double every 20 minutes
#: (https://cloud.google.com/storage/docs/request-rate).
BUCKET_WRITES_PER_SECOND, BUCKET_READS_PER_SECOND = 1000.0, 5000.0
#: US dollars per million tokens of gemini-2.5-flash-lite, per operation of classes A and B
#: (https://cloud.google.com/storage/pricing-examples), and per hour of a vCPU and of a GB of memory of a batch
#: worker in us-central1 (https://cloud.google.com/dataflow/pricing). List prices of November 2026.
INPUT_USD, OUTPUT_USD = 0.10, 0.40
CLASS_A_USD, CLASS_B_USD = 0.005 / 1000, 0.0004 / 1000
VCPU_HOUR_USD, GB_HOUR_USD = 0.056, 0.003557
#: Memory of a worker of 4 cores (n1-standard-4), in GB.
WORKER_GB = 15
#: Source ports of one address of Cloud NAT to one destination
#: (https://cloud.google.com/nat/docs/ports-and-addresses).
NAT_PORTS = 64_512


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A part of the system, and the rows per second that it allows.

    Attributes:
        name: The part.
        rows_per_second: Rows per second.
    """

    name: str
    rows_per_second: float


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Totals of a job.

    Attributes:
        hours: Duration of sending.
        bounds: What each part allows, the smallest first.
        tokens_usd: Cost of the tokens.
        workers_usd: Cost of the workers.
        journal_usd: Cost of the operations of the journal, if keys are sent in order.
        in_flight: Requests in flight at the quota.
        nat_addresses: Addresses of Cloud NAT that the connections need.
        gigabits_per_second: Traffic of requests and responses.
        writes_per_second: Objects written and deleted per second.
        reads_per_second: Pages of listings and segments read per second, if keys are sent in order.
    """

    hours: float
    bounds: tuple[Bound, ...]
    tokens_usd: float
    workers_usd: float
    journal_usd: float
    in_flight: float
    nat_addresses: int
    gigabits_per_second: float
    writes_per_second: float
    reads_per_second: float


def totals_of(case: FleetCase, journal: FleetJournal, seconds: float) -> Totals:
    """Adds up a job.

    Args:
        case: The job.
        journal: Its journal.
        seconds: Time in which the machines get the quota that the rows need.
    """
    seconds = max(seconds, case.rows / slots_rate(case, journal))
    rate = case.rows / seconds
    bounds = [
        Bound(name="quota", rows_per_second=case.requests_per_second),
        Bound(name=f"`max_in_flight` {case.max_in_flight}", rows_per_second=slots_rate(case, journal)),
        Bound(name="`max_in_flight` 64, the default", rows_per_second=case.processes * 64 / case.latency_seconds),
        Bound(name="processor time", rows_per_second=case.processes * PROCESS_REQUESTS_PER_SECOND),
        Bound(
            name="writes of a new bucket",
            rows_per_second=BUCKET_WRITES_PER_SECOND * case.rows / (journal.written + journal.deleted),
        ),
        Bound(
            name="reads of a new bucket",
            rows_per_second=BUCKET_READS_PER_SECOND * case.rows / (journal.pages + journal.reads_in_order),
        ),
    ]
    in_flight = rate * case.latency_seconds
    hours = seconds / 3600
    worker_hour_usd = case.processes_per_worker * VCPU_HOUR_USD + WORKER_GB * GB_HOUR_USD
    tokens = case.input_tokens * INPUT_USD + case.output_tokens * OUTPUT_USD
    return Totals(
        hours=hours,
        bounds=tuple(sorted(bounds, key=lambda bound: bound.rows_per_second)),
        tokens_usd=case.rows * tokens / 1e6,
        workers_usd=hours * case.workers * worker_hour_usd,
        journal_usd=(journal.written + journal.pages) * CLASS_A_USD + journal.reads_in_order * CLASS_B_USD,
        in_flight=in_flight,
        nat_addresses=-int(-in_flight // NAT_PORTS),
        gigabits_per_second=rate * (REQUEST_BYTES + RESPONSE_BYTES) * 8 / 1e9,
        writes_per_second=(journal.written + journal.deleted) / seconds,
        reads_per_second=(journal.pages + journal.reads_in_order) / seconds,
    )


def slots_rate(case: FleetCase, journal: FleetJournal) -> float:
    """Returns the rows per second that the requests in flight allow, less the time of the listings."""
    return case.processes * case.max_in_flight / case.latency_seconds * (1 - journal.listing_ratio)
