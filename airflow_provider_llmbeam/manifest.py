"""The part of a report that fits into an XCom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def manifest(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns counts, tokens, cost and addresses of a report, without its rows."""
    return {name: value for name, value in report.items() if name not in _LEFT_OUT}
