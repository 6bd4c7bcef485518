"""Versions and aliases of models, with Google's own client."""

from __future__ import annotations

import httpx
import pytest
from google.api_core.exceptions import BadRequest, NotFound
from google.cloud import aiplatform_v1 as v1
from llmbeam_sandbox import EndpointSettings, Proxy, Sandbox

from tests.clouds import for_one_test

LOCATION = "europe-west4"
PARENT = f"projects/llmbeam-sandbox/locations/{LOCATION}"
NAME = f"{PARENT}/models/support"
L4 = {"machine_type": "g2-standard-12", "accelerator_type": "NVIDIA_L4", "accelerator_count": 1}


@pytest.fixture(scope="module")
def served():
    with Sandbox(endpoints=EndpointSettings(operation_seconds=0)) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture
def sandbox(served, monkeypatch):
    yield from for_one_test(served, monkeypatch)


def client_of(kind):
    return kind(transport="rest", client_options={"api_endpoint": f"{LOCATION}-aiplatform.googleapis.com"})


@pytest.fixture
def models(sandbox):
    return client_of(v1.ModelServiceClient)


@pytest.fixture
def upload(models):
    """Returns a function that uploads a model, or a further version of it."""

    def uploaded(served="Qwen/Qwen3-4B", **request):
        container = {"image_uri": "vllm", "args": [f"--model={served}"]}
        model = {"display_name": "support", "container_spec": container, **request.pop("model", {})}
        return models.upload_model(request={"parent": PARENT, "model": model, **request}).result()

    return uploaded


@pytest.fixture
def versions(upload):
    """A model with three versions, of which the second is the candidate."""
    upload(model_id="support")
    upload(parent_model=NAME, model={"version_aliases": ["candidate"]})
    upload(parent_model=NAME)


def aliases(models):
    return {one.version_id: sorted(one.version_aliases) for one in models.list_model_versions(name=NAME)}


def test_the_first_version_of_a_model_is_the_default_one_and_a_further_one_is_not(models, upload) -> None:
    first = upload(model_id="support")
    second = upload(parent_model=NAME, served="Qwen/Qwen3-8B")
    assert (first.model, first.model_version_id) == (second.model, "1")
    assert second.model_version_id == "2"
    assert aliases(models) == {"1": ["default"], "2": []}
    assert models.get_model(name=NAME).version_id == "1"
    assert list(models.get_model(name=f"{NAME}@2").container_spec.args) == ["--model=Qwen/Qwen3-8B"]
    assert [one.version_id for one in models.list_models(parent=PARENT)] == ["1"]


def test_a_version_takes_the_aliases_that_it_is_uploaded_with(models, upload) -> None:
    upload(model_id="support", model={"version_aliases": ["champion"]})
    upload(parent_model=NAME, model={"version_aliases": ["champion", "default"]})
    assert aliases(models) == {"1": [], "2": ["champion", "default"]}


def test_an_alias_that_is_merged_leaves_the_version_that_had_it(models, versions) -> None:
    moved = models.merge_version_aliases(name=f"{NAME}@3", version_aliases=["candidate", "default"])
    assert (moved.version_id, sorted(moved.version_aliases)) == ("3", ["candidate", "default"])
    assert aliases(models) == {"1": [], "2": [], "3": ["candidate", "default"]}
    for name in (NAME, f"{NAME}@candidate", f"{NAME}@default", f"{NAME}@3"):
        assert models.get_model(name=name).version_id == "3"


def test_an_alias_with_a_minus_sign_is_removed_from_its_version_alone(models, versions) -> None:
    models.merge_version_aliases(name=f"{NAME}@3", version_aliases=["-candidate"])
    assert aliases(models)["2"] == ["candidate"]
    models.merge_version_aliases(name=f"{NAME}@2", version_aliases=["-candidate", "champion"])
    assert aliases(models)["2"] == ["champion"]
    with pytest.raises(NotFound, match="support@candidate"):
        models.get_model(name=f"{NAME}@candidate")


@pytest.mark.parametrize(
    ("name", "changes", "error", "words"),
    [
        (f"{NAME}@2", ["7"], BadRequest, "'7' is invalid"),
        (f"{NAME}@2", ["Champion"], BadRequest, "'Champion' is invalid"),
        (f"{NAME}@2", ["c" * 129], BadRequest, "is invalid"),
        (f"{NAME}@2", [], BadRequest, "version_aliases is required"),
        (f"{NAME}@1", ["-default"], BadRequest, "exactly one default version"),
        (NAME, ["champion"], BadRequest, "with its version ID is required"),
        (f"{NAME}@candidate", ["champion"], BadRequest, "with its version ID is required"),
        (f"{NAME}@4", ["champion"], NotFound, "support@4"),
    ],
)
def test_an_invalid_change_of_aliases_is_refused_and_changes_nothing(
    models, versions, name, changes, error, words
) -> None:
    before = aliases(models)
    with pytest.raises(error, match=words):
        models.merge_version_aliases(name=name, version_aliases=changes)
    assert aliases(models) == before


def test_a_version_of_no_model_or_with_a_numeric_alias_is_refused(upload, models) -> None:
    with pytest.raises(NotFound, match="support"):
        upload(parent_model=NAME)
    with pytest.raises(BadRequest, match="Invalid parent_model"):
        upload(parent_model="support")
    with pytest.raises(BadRequest, match="'2' is invalid"):
        upload(model_id="support", model={"version_aliases": ["2"]})
    assert list(models.list_models(parent=PARENT)) == []


def test_each_version_has_its_own_labels_and_deployments(sandbox, models, versions) -> None:
    from google.cloud.aiplatform_v1beta1 import EndpointServiceClient  # see `garden_client` of test_endpoints

    models.update_model(model={"name": f"{NAME}@2", "labels": {"data": "june"}}, update_mask={"paths": ["labels"]})
    assert [dict(models.get_model(name=f"{NAME}@{one}").labels) for one in (1, 2)] == [{}, {"data": "june"}]
    endpoints = client_of(EndpointServiceClient)
    made = endpoints.create_endpoint(parent=PARENT, endpoint={"display_name": "e"}).result()
    deployed = {"model": f"{NAME}@candidate", "dedicated_resources": {"machine_spec": L4, "min_replica_count": 1}}
    deployment = endpoints.deploy_model(
        endpoint=made.name, deployed_model=deployed, traffic_split={"0": 100}
    ).result()
    assert deployment.deployed_model.model_version_id == "2"
    models.merge_version_aliases(name=f"{NAME}@3", version_aliases=["candidate"])
    (there,) = endpoints.get_endpoint(name=made.name).deployed_models
    assert there.model_version_id == "2"  # a deployment stays with its version
    assert len(models.get_model(name=f"{NAME}@2").deployed_models) == 1
    assert len(models.get_model(name=f"{NAME}@3").deployed_models) == 0
    with pytest.raises(BadRequest, match="is deployed"):
        models.delete_model(name=NAME)
    answer = httpx.post(
        f"https://{LOCATION}-aiplatform.googleapis.com/v1/{made.name}:predict",
        headers={"Authorization": f"Bearer {sandbox.token}"},
        json={"instances": [{"prompt": "Name a river", "max_tokens": 8}]},
    )
    assert answer.json()["modelVersionId"] == "2"
