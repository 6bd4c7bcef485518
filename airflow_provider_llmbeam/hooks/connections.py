"""Airflow connections of a task."""

from __future__ import annotations

from collections.abc import Sequence


def plain_chain(chain: str | Sequence[str] | None) -> str | list[str] | None:
    """Returns the argument `impersonation_chain` as plain JSON."""
    return chain if isinstance(chain, str | None) else list(chain)
