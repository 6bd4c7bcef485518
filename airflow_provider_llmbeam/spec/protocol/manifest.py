"""The parts of a report that fit into XComs: its manifest, and its page, which the plugin shows."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_llmbeam.spec.protocol.counts import duration

_LEFT_OUT = {
    "answers",
    "comparison",
    "dead_letter_words",
    "first_token_seconds",
    "latency_seconds",
    "length_buckets",
    "samples",
    "series",
    "spec",
}

#: Key of the XCom. `plugin/static/inference.js` has it, too.
PAGE_KEY = "llmbeam_page"
#: Key of the XCom with the name of the error, e.g. `DriftError`, of a task that failed.
ERROR_KEY = "llmbeam_error"
#: Maximum size of the compressed page, in bytes: an XCom is a value in Airflow's metadata database. The page of a
#: run with failures, samples and labels has 39 kB, and 12 kB compressed.
MAX_BYTES = 48 * 1024


def manifest(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns counts, tokens, cost and addresses of a report, without its rows."""
    return {name: value for name, value in report.items() if name not in _LEFT_OUT}


def closing_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yields the last lines of the log of a run: which rows failed, and how long batch inference has taken."""
    if (began_at := report.get("batch_began_at")) is not None:
        rows, took = report["origins"]["batch"], duration(report["finished_at"] - began_at)
        yield f"Batch inference: {rows:,} rows answered, {took} from the request files to the report."
    if kinds := report.get("dead_letter_by_kind"):
        counts = ", ".join(f"{rows:,} {kind}" for kind, rows in sorted(kinds.items(), key=lambda each: -each[1]))
        yield f"{sum(kinds.values()):,} failed: {counts}. Dead letter: {report['dead_letter_uri']}"


def encode_page(html: str, uri: str) -> dict[str, Any]:
    """Returns the XCom of a page; one that is too large is named by its address alone.

    Args:
        html: The page.
        uri: Address of its file.
    """
    compressed = base64.b64encode(gzip.compress(html.encode(), mtime=0)).decode()
    return {"uri": uri, "html_gzip": compressed if len(compressed) <= MAX_BYTES else None}
