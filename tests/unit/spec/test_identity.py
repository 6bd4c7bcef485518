from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.spec import JobSpec, Limits
from airflow_provider_llmbeam.spec.fields.names import DEPLOYMENT_LABEL
from airflow_provider_llmbeam.spec.identity import (
    JOB_LABEL,
    SPEC_LABEL,
    dataflow_name,
    identity,
    job_identity,
    labels,
    spec_digest,
    with_billing_labels,
)

LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
#: Source: beam 2.77, `Job.name` in google-cloud-dataflow-client.
DATAFLOW_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}", fullmatch=True)


@pytest.fixture
def spec(job):
    def make(**parts):
        return JobSpec.parse(job(**parts))

    return make


@given(st.text(max_size=50), st.sampled_from(["", "prod", "dev"]), st.sampled_from(["", "prod", "dev"]))
def test_two_deployments_never_share_an_identity(name, one, other):
    assert (identity(name, one) == identity(name, other)) is (one == other)
    assert len(identity(name, one)) <= 54


def test_the_same_spec_is_another_job_in_another_deployment(spec):
    prod, dev = spec(deployment="prod"), spec(deployment="dev")
    assert job_identity(prod) != job_identity(dev)
    assert dataflow_name(prod) != dataflow_name(dev)
    assert labels(prod)[DEPLOYMENT_LABEL] == "prod"


@given(st.text(max_size=300))
def test_any_name_becomes_a_label_and_a_name_of_dataflow(name):
    found = identity(name)
    assert LABEL_VALUE.fullmatch(found)
    assert DATAFLOW_NAME.fullmatch(found)
    assert len(found) <= 54
    assert identity(name) == found


@given(st.text(max_size=200), st.text(max_size=200))
def test_different_names_have_different_identities(one, other):
    assert (identity(one) == identity(other)) == (one == other)


@pytest.mark.parametrize(
    "names",
    [("a.b", "a-b", "a_b", "A-b"), ("x" * 100, "x" * 101), ("日", "月"), ("", "-", "--"), ("1", "j1")],
    ids=["signs", "long", "unknown characters", "nothing readable", "digits"],
)
def test_similar_names_have_different_identities(names):
    assert len({identity(name) for name in names}) == len(names)


def test_an_identity_starts_with_the_readable_name():
    assert identity("Nightly Enrichment.2026").startswith("nightly-enrichment-2026-")
    assert identity("2026").startswith("j2026-")
    assert identity("日").startswith("j-")


@given(NAMES)
def test_the_name_on_dataflow_fits(name):
    data = {
        "source": {"uri": "in.jsonl", "key": ["id"]},
        "prompt": {"template": "{{ row.t }}"},
        "model": {"type": "echo"},
        "sink": {"uri": "out"},
    }
    found = dataflow_name(JobSpec.parse({**data, "name": name}))
    assert DATAFLOW_NAME.fullmatch(found)
    assert len(found) <= 63


def test_a_changed_spec_is_another_job_of_the_same_name(spec):
    one, other = spec(), spec(prompt={"template": "Another: {{ row.text }}"})
    assert identity(one.name) == identity(other.name)
    assert spec_digest(one) != spec_digest(other)
    assert dataflow_name(one) != dataflow_name(other)
    assert dataflow_name(one) == dataflow_name(spec())


def test_labels_are_those_of_the_user_and_of_the_job(spec):
    runner = {"type": "dataflow", "location": "europe-west1", "labels": {"team": "data"}}
    places = {"source": {"uri": "gs://b/in.jsonl", "key": ["id"]}, "sink": {"uri": "gs://b/out"}}
    found = labels(spec(**places, runner=runner))
    assert found.keys() == {"team", JOB_LABEL, SPEC_LABEL}
    assert found["team"] == "data"
    assert all(LABEL_VALUE.fullmatch(value) for value in found.values())
    assert labels(spec()).keys() == {JOB_LABEL, SPEC_LABEL}


VERTEX = {"type": "gemini", "project": "p"}


def test_the_requests_of_a_task_have_the_labels_of_dag_and_task(spec):
    labelled = with_billing_labels(spec(model={**VERTEX, "labels": {"team": "data"}}), "nightly", "group.judge")
    assert labelled.model.labels.pop("llmbeam-task").startswith("group-judge-")
    assert labelled.model.labels == {"llmbeam-dag": "nightly", "team": "data"}


def test_a_label_of_the_user_takes_precedence(spec):
    labelled = with_billing_labels(spec(model={**VERTEX, "labels": {"llmbeam-dag": "nights"}}), "night_2", "judge")
    assert labelled.model.labels == {"llmbeam-dag": "nights", "llmbeam-task": "judge"}


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"type": "gemini"}},
        {"model": {"type": "openai", "name": "gpt-5-mini"}},
        {"model": {**VERTEX, "name": "gemini-embedding-001"}, "task": "embed"},
    ],
)
def test_a_job_whose_requests_take_no_labels_has_none(spec, parts):
    given = spec(**parts)
    assert with_billing_labels(given, "nightly", "judge") == given


@given(st.text(max_size=250), st.text(max_size=250))
def test_any_dag_and_task_become_labels_that_a_spec_takes(dag_id, task_id):
    job = {
        "name": "j",
        "source": {"uri": "in.csv", "key": "id"},
        "prompt": {"template": "{{ row.text }}"},
        "model": VERTEX,
        "sink": {"uri": "out/"},
    }
    labelled = with_billing_labels(JobSpec.parse(job), dag_id, task_id)
    assert JobSpec.from_json(labelled.model_dump_json()) == labelled


def test_another_dag_run_or_other_alerts_are_no_other_spec(job):
    digest = spec_digest(JobSpec.parse(job()))
    run = {"dag_id": "d", "task_id": "t", "run_id": "manual", "map_index": -1}
    assert spec_digest(JobSpec.parse(job(airflow_run=run, alerts={"on_drift": "fail"}))) == digest
    assert spec_digest(JobSpec.parse(job(generation={"seed": 1}))) != digest


def test_a_later_version_with_more_fields_has_the_same_digest(job):
    """Else a Dataflow job that runs while the package is upgraded would be cancelled and begun anew."""

    class LaterLimits(Limits):
        new_limit: int | None = None

    class LaterSpec(JobSpec):
        limits: LaterLimits = LaterLimits()
        new_field: str = "as before"

    plain = job(limits={"max_in_flight": 3})
    digest = spec_digest(JobSpec.parse(plain))
    assert spec_digest(LaterSpec.parse(plain)) == digest
    assert spec_digest(LaterSpec.parse({**plain, "new_field": "x"})) != digest
