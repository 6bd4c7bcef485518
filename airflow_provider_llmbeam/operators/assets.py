"""Events of the assets that a task updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context


def add_manifest(context: Context, outlets: Iterable[Any], manifest: Mapping[str, Any]) -> None:
    """Adds a manifest to the `extra` of the event of each asset, for the Dags that it starts.

    An alias is left out: only a task that knows the asset behind it can add an event.
    """
    from airflow.sdk import Asset

    for outlet in outlets:
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra.update(manifest)
