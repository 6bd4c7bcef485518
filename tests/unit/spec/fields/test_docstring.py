"""Tests of docstrings that have inherited fields, too."""

from __future__ import annotations

import inspect

import pytest

from airflow_provider_llmbeam import spec
from airflow_provider_llmbeam.spec import evaluation
from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.fields.docstring import documented_fields, with_inherited_fields

CLASSES = [
    each
    for module in (spec, evaluation)
    for name in module.__all__
    if isinstance(each := getattr(module, name), type) and issubclass(each, SpecModel)
]


class Base:
    """A base.

    Attributes:
        key: Columns
            of the key.
        rows: Rows.
    """


@pytest.mark.parametrize("model", CLASSES, ids=lambda model: model.__name__)
def test_help_of_a_spec_shows_every_field(model):
    assert model.model_fields.keys() - documented_fields(model.__doc__) - {"type"} == set()


def test_an_inherited_field_follows_the_own_ones_and_is_written_once():
    fields = "    Attributes:\n        uri: Address.\n        rows: Own words.\n"
    own = f"Files.\n\n{fields}\n    Raises:\n        Error: No."
    found = with_inherited_fields(own, [Base], ["key", "uri", "rows"])
    assert inspect.cleandoc(found) == (
        "Files.\n\nAttributes:\n    uri: Address.\n    rows: Own words.\n    key: Columns\n        of the key.\n\n"
        "Raises:\n    Error: No."
    )


def test_a_class_without_fields_of_its_own_has_those_of_its_base():
    found = with_inherited_fields("Files.", [Base], ["rows"])
    assert inspect.cleandoc(found) == "Files.\n\nAttributes:\n    rows: Rows."


def test_a_docstring_with_nothing_inherited_stays_and_none_stays_none():
    assert with_inherited_fields(Base.__doc__, [Base], ["key"]) == Base.__doc__
    assert with_inherited_fields(None, [Base], ["key"]) is None
