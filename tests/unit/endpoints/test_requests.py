"""What a request for an endpoint holds: the Hugging Face token, and the name of the model."""

from __future__ import annotations

import json

import pytest

from airflow_provider_llmbeam.endpoints.platform import EndpointPlan
from airflow_provider_llmbeam.endpoints.platforms import cloud_run, vertex_ai_requests
from airflow_provider_llmbeam.spec.endpoint import parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.identity import endpoint_labels
from airflow_provider_llmbeam.spec.model import Generation, parse_model
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter

KEY = "etl-judge-0123456789ab"
TOKEN = "hf_planted"
SECRET = "projects/acme/secrets/hf"
GEMMA = {"model": "google/gemma-3-4b-it", "hf_token_secret": f"{SECRET}/versions/7"}
L4 = {"machine_type": "g2-standard-12", "accelerator_type": "NVIDIA_L4", "accelerator_count": 1}
VERTEX = {"type": "vertex", "locations": ["us-central1"], **L4}


def plan(**fields):
    labels = endpoint_labels(KEY, deployment="production", expires_at=1e9, dag_id="etl", run_id="r1", attempt="1")
    return EndpointPlan(spec=parse_endpoint({**GEMMA, **fields}), key=KEY, labels=labels)


def test_model_garden_gets_the_token_in_the_field_made_for_it_alone():
    found = plan(**VERTEX)
    request = vertex_ai_requests.deploy_request(found, found.spec, TOKEN)
    assert request["model_config"].pop("hugging_face_access_token") == TOKEN
    assert TOKEN not in json.dumps(request)
    assert (
        "hugging_face_access_token"
        not in vertex_ai_requests.deploy_request(found, found.spec, None)["model_config"]
    )


def test_a_container_on_vertex_ai_gets_the_token_in_one_variable_and_in_no_argument_or_label():
    found = plan(**VERTEX, container_image="vllm:1", container_env={"A": "b"})
    resource = vertex_ai_requests.model_resource(found, found.spec, TOKEN)
    variables = resource["container_spec"].pop("env")
    assert variables == [{"name": "A", "value": "b"}, {"name": "HF_TOKEN", "value": TOKEN}]
    assert TOKEN not in json.dumps(resource)


def test_cloud_run_gets_the_name_and_the_version_of_the_secret_and_reads_it_itself():
    found = plan(type="cloud_run", locations=["us-central1"], image="vllm:1")
    (container,) = cloud_run.service(found, found.spec)["template"]["containers"]
    assert container["env"] == [
        {"name": "HF_TOKEN", "value_source": {"secret_key_ref": {"secret": SECRET, "version": "7"}}}
    ]


def test_models_of_two_directories_on_cloud_storage_share_no_answers():
    fingerprints, flags = set(), set()
    for directory in ("gs://a/v1/gemma", "gs://b/tuned-2/gemma/"):
        found = plan(type="cloud_run", locations=["us-central1"], model=directory, hf_token_secret=None)
        (container,) = cloud_run.service(found, found.spec)["template"]["containers"]
        flags |= {arg for arg in container["args"] if arg.startswith("--served-model-name")}
        name = cloud_run.served_name(directory)
        fingerprints.add(
            Fingerprinter(parse_model({"type": "openai", "name": name}), Generation(), None)("p", None)
        )
    assert len(fingerprints) == 2
    assert flags == {"--served-model-name=gs://a/v1/gemma", "--served-model-name=gs://b/tuned-2/gemma"}


@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_a_token_in_the_environment_of_the_container_is_refused_without_its_value(variable):
    with pytest.raises(Exception, match="`hf_token_secret`") as refused:
        plan(**VERTEX, container_image="vllm:1", container_env={variable: TOKEN})
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "concurrency"),
    [({}, 64), ({"concurrency": 1000}, 1000), ({"max_num_seqs": 256}, 256), ({"max_num_seqs": 2048}, 1000)],
)
def test_cloud_run_gets_at_most_the_concurrency_that_it_takes(fields, concurrency):
    fields = {"model": "gs://bucket/someone-elses", "hf_token_secret": None, **fields}
    found = plan(type="cloud_run", locations=["us-central1"], **fields)
    template = cloud_run.service(found, found.spec)["template"]
    assert template["max_instance_request_concurrency"] == concurrency


@pytest.mark.parametrize("dedicated", [True, False])
def test_model_garden_gets_the_field_that_turns_the_own_address_off(dedicated):
    found = plan(**VERTEX, dedicated_dns=dedicated)
    config = vertex_ai_requests.deploy_request(found, found.spec, None)["endpoint_config"]
    assert config["dedicated_endpoint_disabled"] is not dedicated
    assert "dedicated_endpoint_enabled" not in config


GARDEN, HUB = "google/gemma3@gemma-3-4b-it", "Qwen/Qwen3-4B"


@pytest.mark.parametrize(
    ("model", "name", "may_be"),
    [
        (GARDEN, "publishers/google/models/gemma3@gemma-3-4b-it", True),
        (GARDEN, "publishers/google/models/gemma3", True),
        (GARDEN, "publishers/google/models/gemma3@gemma-3-27b-it", False),
        (GARDEN, "publishers/google/models/gemma2@gemma-3-4b-it", False),
        (HUB, "publishers/hf-qwen/models/qwen3-4b@001", True),
        (HUB, "publishers/hf-Qwen/models/Qwen3-4B", True),
        (HUB, "publishers/hf-qwen/models/qwen3-8b@001", False),
        (HUB, "", True),
        (HUB, "Qwen/Qwen3-8B", True),
    ],
)
def test_the_model_of_an_operation_is_compared_by_what_both_names_have(model, name, may_be):
    spec = plan(**VERTEX, model=model, hf_token_secret=None, accept_eula=True).spec
    assert vertex_ai_requests.may_be_model(name, spec) is may_be
