from __future__ import annotations

from types import SimpleNamespace

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_llmbeam.operators.assets import add_manifest


def test_the_event_of_each_asset_carries_the_manifest_beside_what_the_author_added():
    answers, other = Asset("file:///out"), Asset("file:///other")
    events = OutletEventAccessors()
    events[answers].extra["by"] = "author"
    add_manifest(
        {"outlet_events": events}, [answers, other, AssetAlias("a"), SimpleNamespace()], {"rows": {"read": 3}}
    )
    assert events[answers].extra == {"by": "author", "rows": {"read": 3}}
    assert events[other].extra == {"rows": {"read": 3}}
    assert len(events) == 2
