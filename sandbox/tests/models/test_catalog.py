from __future__ import annotations

import pytest
from llmbeam_sandbox.core.resource_filter import matches
from llmbeam_sandbox.core.rest import RestError
from llmbeam_sandbox.models.catalog import garden_model, is_gated, is_on_hub, read_container

TOKEN = [{"name": "HF_TOKEN", "value": "hf_x"}]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("publishers/google/models/gemma3@gemma-3-27b-it", "google/gemma-3-27b-it"),
        ("publishers/google/models/gemma3", "google/gemma-3-270m-it"),
        ("publishers/google/models/gemma3@gemma-3-3b-it", None),
        ("publishers/nobody/models/gemma3", None),
        ("google/gemma3", None),
    ],
)
def test_garden_knows_some_models(name: str, model: str | None) -> None:
    assert garden_model(name) == model


def test_the_hub_has_open_and_gated_models() -> None:
    assert is_on_hub("google/gemma-3-4b-it")
    assert is_gated("google/gemma-3-4b-it")
    assert is_on_hub("Qwen/Qwen3-0.6B")
    assert not is_gated("Qwen/Qwen3-0.6B")
    assert not is_on_hub("nobody/nothing")


@pytest.mark.parametrize(
    ("container", "model", "name", "failure"),
    [
        ({"args": ["--model=Qwen/Qwen3-4B"]}, "Qwen/Qwen3-4B", "Qwen/Qwen3-4B", ""),
        ({"command": ["vllm", "serve", "Qwen/Qwen3-4B"]}, "Qwen/Qwen3-4B", "Qwen/Qwen3-4B", ""),
        ({"args": ["--model", "gs://b/w", "--served-model-name", "mine"]}, "gs://b/w", "mine", ""),
        ({"env": [{"name": "MODEL_ID", "value": "google/gemma-3-1b-it"}, *TOKEN]}, "google/gemma-3-1b-it", "", ""),
        ({"args": ["--model=google/gemma-3-1b-it"]}, "google/gemma-3-1b-it", "", "gated repo"),
        ({"args": ["--model=a/b"], "env": TOKEN}, "a/b", "", "not a valid model identifier"),
        ({"imageUri": "x"}, "", "", ""),
    ],
)
def test_a_container_serves_the_model_of_its_command(container, model: str, name: str, failure: str) -> None:
    served = read_container(container)
    assert (served.model, served.name) == (model, name or model)
    assert failure in served.failure if failure else served.failure == ""


@pytest.mark.parametrize(
    ("text", "is_meant"),
    [
        ("", True),
        ("labels.a=b", True),
        ("labels.a!=b", False),
        ("labels.a", True),
        ("labels.c:*", False),
        ('labels.a:"b" AND displayName=x', True),
        ("labels.a=b AND display_name=y", False),
    ],
)
def test_filters_match_labels_and_names(text: str, is_meant: bool) -> None:
    assert matches(text, {"displayName": "x", "labels": {"a": "b"}}) is is_meant


@pytest.mark.parametrize("text", ["labels.a=b OR labels.c=d", "name=x", "labels", "(labels.a=b)"])
def test_other_filters_are_refused(text: str) -> None:
    with pytest.raises(RestError, match="Invalid filter"):
        matches(text, {})
