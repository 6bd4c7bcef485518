"""Runs of Vertex AI Experiments, against the sandbox, and as Google's client reads them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.cloud import aiplatform
from llmbeam_sandbox import Fault, Proxy, Sandbox

from airflow_provider_llmbeam.exceptions import AccessDeniedError, JobSpecError
from airflow_provider_llmbeam.hooks.experiments import ExperimentsHook, read_experiment
from tests.clouds import use_environment

PROJECT = "llmbeam-sandbox"
PARAMS: dict[str, str | float] = {"model": "gemini-3.5-flash", "temperature": 0.2}


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    with Sandbox() as sandbox, Proxy(sandbox) as proxy:
        use_environment(monkeypatch, proxy.environment())
        yield sandbox


def test_a_run_is_what_google_s_client_reads_and_a_retry_makes_no_second_one(sandbox: Sandbox) -> None:
    hook = ExperimentsHook("us-central1", PROJECT)
    name = hook.log_run("moods", "evaluate-1", PARAMS, {"mood": 0.5})
    assert hook.log_run("moods", "evaluate-1", PARAMS, {"mood": 0.9, "cost_usd": 0.01}) == name
    hook.log_run("moods", "evaluate-2", PARAMS, {"mood": 0.8})
    assert [one["displayName"] for one in sandbox.contexts] == ["moods", "evaluate-1", "evaluate-2"]
    _, *runs = sandbox.contexts
    assert {len(one["parentContexts"]) for one in runs} == {1}
    aiplatform.init(project=PROJECT, location="us-central1", api_transport="rest")
    run = aiplatform.ExperimentRun("evaluate-1", experiment="moods")
    assert run.get_params() == PARAMS
    assert run.get_metrics() == {"mood": 0.9, "cost_usd": 0.01}
    assert run.state.name == "COMPLETE"


def test_a_refused_run_names_the_role(sandbox: Sandbox) -> None:
    sandbox.faults.queue("vertex.contexts.patch", Fault(kind="error", http_status=403))
    with pytest.raises(AccessDeniedError, match=r"roles/aiplatform\.user"):
        ExperimentsHook("us-central1", PROJECT).log_run("moods", "evaluate-1", PARAMS, {})


def test_an_experiment_is_named_by_its_id_or_its_resource_name() -> None:
    assert read_experiment("moods") == (None, "us-central1", "moods")
    full = "projects/acme/locations/europe-west4/metadataStores/default/contexts/moods"
    assert read_experiment(full) == ("acme", "europe-west4", "moods")
    for name in ("Moods", "", "a" * 61, "projects/acme/locations/europe-west4/moods"):
        with pytest.raises(JobSpecError, match="`experiment`: must be 1 to 60 of a-z"):
            read_experiment(name)
