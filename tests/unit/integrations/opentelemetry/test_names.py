from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_llmbeam.integrations.opentelemetry import names

DOCS = Path(__file__).resolve().parents[4] / "docs"


@pytest.mark.parametrize(
    ("model", "origin", "provider"),
    [
        ("gemini:gemini-2.5-flash", "https://generativelanguage.googleapis.com:443", "gcp.gemini"),
        ("gemini:gemini-2.5-flash", "https://europe-west1-aiplatform.googleapis.com:443", "gcp.vertex_ai"),
        ("gemini:gemini-2.5-flash", "https://private.example:443", "gcp.gen_ai"),
        ("vertex_endpoint:google/gemma-3-4b-it", "https://1.prediction.vertexai.goog:443", "gcp.vertex_ai"),
        ("openai:gpt-5-mini", "https://api.openai.com:443", "openai"),
        ("openai:Qwen/Qwen3-4B", "http://vllm:8000", "openai_compatible"),
        ("echo:echo", "", "echo"),
    ],
)
def test_the_provider_follows_from_the_type_of_the_model_and_its_server(model, origin, provider):
    manifest = {"model": model, "server": {"kind": "provider", "origin": origin}}
    found = names.model_attributes(manifest, embeds=False)
    assert found[names.PROVIDER] == provider
    assert found[names.MODEL] == model.partition(":")[2]


@pytest.mark.parametrize(
    ("model", "embeds", "operation"),
    [("gemini:a", False, "generate_content"), ("gemini:a", True, "embeddings"), ("openai:a", False, "chat")],
)
def test_the_operation_follows_from_the_task(model, embeds, operation):
    manifest = {"model": model, "server": {"origin": ""}}
    assert names.model_attributes(manifest, embeds=embeds)[names.OPERATION] == operation


def test_no_attribute_identifies_a_run():
    ti = SimpleNamespace(dag_id="d", task_id="t", run_id="r", try_number=3, map_index=7)
    assert names.task_attributes(ti) == {"airflow.dag_id": "d", "airflow.task_id": "t"}


@pytest.mark.parametrize("metric", names.ALL, ids=lambda metric: metric.name)
def test_the_documentation_has_the_unit_and_the_attributes_of_each_metric(metric):
    (line,) = [
        line for line in (DOCS / "metrics.md").read_text().splitlines() if line.startswith(f"| `{metric.name}`")
    ]
    _, kind, unit, attributes, *_ = [cell.strip() for cell in line.strip("|").split("|")]
    assert (kind, unit.strip("`")) == (metric.kind, metric.unit)
    assert tuple(re.findall(r"`([^`]+)`", attributes)) == tuple(
        dict.fromkeys(_short(name) for name in metric.attributes)
    )


def test_the_dashboard_asks_for_metrics_that_exist():
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    exported = {_prometheus(metric) for metric in names.ALL}
    asked = {
        found
        for query in queries
        for found in re.findall(r"\b(?:airflow_llmbeam|llmbeam|gen_ai_client)\w+(?=[\[{])", query)
    }
    assert asked <= exported, asked - exported
    assert len(asked) >= 7
    assert dashboard["title"]


def _short(name):
    return "*model*" if name in (names.OPERATION, names.PROVIDER, names.MODEL) else name


def _prometheus(metric):
    """Returns the name under which Prometheus has a metric; units in braces are not part of it."""
    name = f"airflow.{metric.name}" if metric.through == "stats" else metric.name
    unit = {"s": "_seconds", "ms": "_milliseconds"}.get(metric.unit, "")
    return name.replace(".", "_") + unit + ("_total" if metric.kind == "counter" else "")
