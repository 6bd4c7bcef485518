from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.spec.endpoint.identity import (
    display_name,
    endpoint_id,
    endpoint_labels,
    endpoint_of_model,
    expires_at,
    known_labels,
    label_value,
    service_id,
)
from airflow_provider_llmbeam.spec.identity import identity
from airflow_provider_llmbeam.spec.model import EchoModel, OpenAIModel, VertexEndpointModel


@given(st.text())
def test_any_name_makes_ids_that_google_takes(name):
    key = identity(name)
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])", endpoint_id(key))
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,47}[a-z0-9])", service_id(key))


@given(st.text(), st.text())
def test_names_that_differ_make_ids_that_differ(one, other):
    same = one == other
    assert (endpoint_id(identity(one)) == endpoint_id(identity(other))) is same
    assert (service_id(identity(one)) == service_id(identity(other))) is same


@given(st.text(), st.text())
def test_any_text_makes_a_label_and_texts_that_differ_stay_different(one, other):
    assert re.fullmatch(r"[a-z0-9_-]{0,63}", label_value(one))
    assert (label_value(one) == label_value(other)) is (one == other)


def test_labels_have_the_owner_and_the_expiry():
    labels = endpoint_labels(
        "k-1", deployment="prod", expires_at=1_000.9, dag_id="D", run_id="manual__2026", attempt="1"
    )
    assert labels["llmbeam-key"] == "k-1"
    assert labels["llmbeam-deployment"] == "prod"
    assert labels["llmbeam-expires"] == "1000"
    assert labels["llmbeam-run"] == "manual__2026"
    assert expires_at(labels) == 1_000.0


def test_a_display_name_stands_for_labels_that_are_missing():
    labels = endpoint_labels("k-1", deployment="prod", expires_at=1_000, dag_id="d", run_id="r", attempt="1")
    known = known_labels({}, display_name(labels))
    assert expires_at(known) == 1_000.0
    assert known["llmbeam-deployment"] == "prod"
    longest = {**labels, "llmbeam-key": identity("x" * 99), "llmbeam-deployment": "d" * 40}
    longest["llmbeam-expires"] = "9" * 10
    assert len(display_name(longest)) <= 128  # source: aiplatform_v1, `Endpoint.display_name`
    assert known_labels({}, "my endpoint") == {}
    own = {"llmbeam-key": "k-1", "llmbeam-expires": "2000"}
    assert known_labels(own, display_name(labels)) == own


@pytest.mark.parametrize("labels", [{}, {"llmbeam-expires": "5"}, {"llmbeam-key": "k", "llmbeam-expires": "soon"}])
def test_foreign_resources_never_expire(labels):
    assert expires_at(labels) is None


def test_the_endpoint_of_a_model_is_read_from_its_address():
    key = identity("dag-task-0123456789ab")
    vertex = VertexEndpointModel(
        type="vertex_endpoint", name="g", endpoint=f"projects/p/locations/us-central1/endpoints/{endpoint_id(key)}"
    )
    assert endpoint_of_model(vertex) == endpoint_id(key)
    for address in (
        f"https://{service_id(key)}-abcdefghij-uc.a.run.app",
        f"https://{service_id(key)}-12345.us-central1.run.app",
    ):
        model = OpenAIModel(type="openai", name="g", base_url=f"{address}/v1", id_token_audience=address)
        assert endpoint_of_model(model) == service_id(key)
    foreign = VertexEndpointModel(
        type="vertex_endpoint", name="g", endpoint="projects/p/locations/l-1/endpoints/77"
    )
    assert endpoint_of_model(foreign) is None
    assert endpoint_of_model(OpenAIModel(type="openai", name="g")) is None
    assert endpoint_of_model(EchoModel(type="echo")) is None
