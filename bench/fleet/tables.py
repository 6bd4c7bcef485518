"""The tables of docs/evidence/scale.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.fleet.case import PROCESS_REQUESTS_PER_SECOND, FleetCase
from bench.fleet.governors import Sharing
from bench.fleet.journal import FleetJournal
from bench.fleet.totals import NAT_PORTS, Totals

#: Bytes of a row with its answer in BigQuery, and BigQuery's limits of a load job and of streams into a
#: multi-region (https://cloud.google.com/bigquery/quotas).
ROW_BYTES, LOAD_JOB_BYTES, STREAM_BYTES_PER_SECOND = 1000, 15e12, 3e9


def sharing_table(sharings: Iterable[Sharing]) -> str:
    """Returns a line for each `expected_workers`."""
    return format_table(
        ("`expected_workers`", "first minute", "429s in it", "after 5 minutes", "429s", "Jain"),
        [sharing_line(sharing) for sharing in sharings],
    )


def sharing_line(sharing: Sharing) -> list[str]:
    """Returns the line of one `expected_workers`; the first three cells need one simulated minute."""
    return [
        str(sharing.expected_workers),
        _percent(sharing.first_minute),
        _percent(sharing.first_minute_rejected, 1),
        _percent(sharing.steady),
        _percent(sharing.steady_rejected, 1),
        f"{sharing.steady_jain:.2f}",
    ]


def bounds_table(totals: Totals) -> str:
    """Returns a line for each part of the system."""
    return format_table(
        ("what bounds the job", "rows per second"),
        [[bound.name, f"{bound.rows_per_second:,.0f}"] for bound in totals.bounds],
    )


def totals_table(totals: Totals, journal: FleetJournal) -> str:
    """Returns the totals of a job."""
    return format_table(("total", "value"), [*_duration(totals), *_journal(totals, journal), *_costs(totals)])


def paper_table(case: FleetCase, totals: Totals, journal: FleetJournal) -> str:
    """Returns what a job needs of each part."""
    tokens = (case.input_tokens + case.output_tokens) * case.requests_per_second
    streamed = case.requests_per_second * ROW_BYTES / STREAM_BYTES_PER_SECOND
    busy = case.process_rows_per_second / PROCESS_REQUESTS_PER_SECOND
    return format_table(
        ("part", "what it would take"),
        [
            ["quota", f"{case.requests_per_minute:,.0f} requests and {60 * tokens:,.0f} tokens per minute"],
            [
                "processes",
                f"{case.processes}, each with {_percent(busy)} of a core: {case.workers} machines of 4 cores, or "
                f"{case.processes} workers of Dataflow",
            ],
            ["requests in flight", f"{totals.in_flight:,.0f}, {case.max_in_flight:,} per process"],
            [
                "connections",
                f"one for each, over {totals.nat_addresses} addresses of Cloud NAT of {NAT_PORTS:,} ports",
            ],
            ["bandwidth", f"{totals.gigabits_per_second:.1f} Gbit/s of requests and responses"],
            *_journal(totals, journal),
            [
                "BigQuery",
                f"rows of 1 kB: {_percent(case.rows * ROW_BYTES / LOAD_JOB_BYTES)} of the largest load job, "
                f"or {_percent(streamed)} of the default throughput of the Storage Write API",
            ],
            ["duration", f"{totals.hours:.2f} h for {case.rows / 1e6:,.0f} million rows"],
            *_costs(totals),
        ],
    )


def _duration(totals: Totals) -> list[list[str]]:
    return [
        ["sending", f"{totals.hours:.2f} h"],
        ["requests in flight", f"{totals.in_flight:,.0f}"],
        ["traffic", f"{totals.gigabits_per_second:.2f} Gbit/s"],
    ]


def _journal(totals: Totals, journal: FleetJournal) -> list[list[str]]:
    return [
        ["journal", f"{journal.objects:,} objects, {journal.bytes / 1e9:.0f} GB"],
        [
            "journal, writes",
            f"{journal.written:,} objects, of which {journal.deleted:,} are deleted: "
            f"{totals.writes_per_second:,.0f} operations per second",
        ],
        [
            "journal, listings",
            f"{journal.pages:,} pages; the last one takes {journal.last_listing_seconds:.1f} s; "
            f"{_percent(journal.listing_ratio)} of the time of the processes",
        ],
        [
            "journal, reads, keys in order",
            f"at most {journal.reads_in_order / 1e6:.1f} million segments; with the listings "
            f"{totals.reads_per_second:,.0f} operations per second",
        ],
        [
            "journal, reads, keys in any order",
            f"{journal.reads / 1e6:.1f} million segments, {_percent(journal.read_ratio)} of a core and "
            f"{journal.index_bytes / 1e9:.1f} GB of memory for each process",
        ],
    ]


def _costs(totals: Totals) -> list[list[str]]:
    return [
        ["cost of tokens", f"${totals.tokens_usd:,.0f}"],
        ["cost of workers", f"${totals.workers_usd:,.0f}"],
        ["cost of the journal", f"${totals.journal_usd:,.0f}"],
    ]


def _percent(ratio: float, digits: int = 0) -> str:
    return f"{100 * ratio:.{digits}f} %"


def format_table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Returns a table of Markdown."""
    rule = ["---"] * len(titles)
    return "\n".join(f"| {' | '.join(line)} |" for line in (titles, rule, *lines))
