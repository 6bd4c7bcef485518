"""Names of registered models."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.spec.fields.registered_model import RegisteredModel, is_alias
from tests.hostile import odd

NAME = "projects/acme/locations/europe-west4/models/support"


@pytest.mark.parametrize(
    ("text", "version", "is_fixed"),
    [
        (NAME, "default", False),
        (f"{NAME}@default", "default", False),
        (f"{NAME}@champion-eu2", "champion-eu2", False),
        (f"{NAME}@1", "1", True),
        (f"{NAME}@4711", "4711", True),
    ],
)
def test_a_name_has_a_number_or_an_alias_and_without_one_the_default_alias(
    text: str, version: str, is_fixed: bool
) -> None:
    model = RegisteredModel.read(text)
    assert model is not None
    assert (model.model, model.version, model.is_fixed) == (NAME, version, is_fixed)
    assert (model.project, model.location) == ("acme", "europe-west4")
    assert str(model) == f"{NAME}@{version}"
    assert RegisteredModel.read(str(model)) == model
    assert str(model.at("3")) == f"{NAME}@3"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "support@champion",
        "google/gemma3@gemma-3-4b-it",
        "projects/acme/locations/europe-west4/endpoints/7",
        "publishers/google/models/gemma3@gemma-3-4b-it",
        f"{NAME}@",
        f"{NAME}@0",
        f"{NAME}@01",
        f"{NAME}@Champion",
        f"{NAME}@c",
        f"{NAME}@-champion",
        f"{NAME}@champion@3",
        f"{NAME}@{{{{ params.alias }}}}",
        f"{NAME}@1\n",
    ],
)
def test_anything_else_is_no_name_of_a_registered_model(text: str) -> None:
    assert RegisteredModel.read(text) is None


@given(odd)
def test_reading_never_raises(value: Any) -> None:
    found = RegisteredModel.read(value)
    assert found is None or str(found).startswith(str(value))


@given(st.text(max_size=130))
def test_an_alias_is_never_a_number(text: str) -> None:
    assert not (is_alias(text) and text.isdecimal())
