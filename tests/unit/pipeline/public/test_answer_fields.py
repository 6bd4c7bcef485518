from __future__ import annotations

import json

import apache_beam as beam
import pytest
from apache_beam.coders import registry
from apache_beam.typehints.row_type import RowTypeConstraint
from hypothesis import given

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.public.answer_fields import AnswerFields
from tests import outcomes
from tests.hostile import altered

SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"type": "string"},
        "count": {"type": "integer"},
        "score": {"type": ["number", "null"]},
        "is_late": {"type": "boolean"},
        "anything": {},
        "parcels": {"type": "array", "items": {"type": "object", "properties": {"weight": {"type": "number"}}}},
    },
}
ANSWER = {
    "label": "late",
    "count": 3,
    "score": 0.5,
    "is_late": True,
    "anything": {"a": [1]},
    "parcels": [{"weight": 1.5}, {}],
}


def completion(answer, **known):
    return outcomes.completion(json.dumps(answer), parsed=answer, **known)


def stored(fields, answer, **known):
    """Returns the fields of an answer as they are after a shuffle, which encodes them by their types."""
    coder = registry.get_coder(RowTypeConstraint.from_fields(fields.beam_types))
    return coder.decode(coder.encode(beam.Row(**fields.beam_values(completion(answer, **known)))))


def test_a_text_is_one_field():
    fields = AnswerFields.of(None, "struct")
    assert fields.values(completion("a text")) == {"answer": '"a text"'}
    assert stored(fields, "a text").answer == '"a text"'


def test_the_fields_of_a_struct_have_the_types_of_the_schema():
    answer = stored(AnswerFields.of(SCHEMA, "struct"), ANSWER).answer
    assert (answer.label, answer.count, answer.score, answer.is_late) == ("late", 3, 0.5, True)
    assert json.loads(answer.anything) == {"a": [1]}
    assert [parcel.weight for parcel in answer.parcels] == [1.5, None]


def test_a_property_that_the_answer_lacks_is_none():
    assert stored(AnswerFields.of(SCHEMA, "flat"), {})._asdict() == dict.fromkeys(SCHEMA["properties"])


def test_a_json_field_is_text():
    assert json.loads(stored(AnswerFields.of(SCHEMA, "json"), ANSWER).answer) == ANSWER


def test_a_flat_answer_that_is_no_object_is_an_error():
    # A schema without `type` allows it.
    fields = AnswerFields.of({"properties": {"label": {}}}, "flat")
    with pytest.raises(ValueError, match="it is no object"):
        fields.values(completion("late"))


def test_what_parameters_add_to_an_answer_is_a_field_too():
    fields = AnswerFields.of(None, "struct", ("citations", "mean_logprob", "reasoning"))
    pages = [{"uri": "https://a", "title": "A", "texts": ["one", "two"]}]
    found = stored(fields, "a text", citations=pages, mean_logprob=-0.25)
    assert found.mean_logprob == -0.25
    ((uri, title, texts),) = found.citations
    assert (uri, title, [*texts]) == ("https://a", "A", ["one", "two"])
    assert stored(fields, "a text") == ('"a text"', None, None, None)
    assert stored(fields, "a text", reasoning="hm").reasoning == "hm"
    assert fields.values(completion("a text", citations=pages))["citations"] == pages


@pytest.mark.fuzz
@given(answer=altered(ANSWER))
def test_any_answer_is_stored_or_refused(answer):
    for form in ("struct", "flat"):
        fields = AnswerFields.of(SCHEMA, form)
        try:
            found = fields.beam_values(completion(answer))
        except (ValueError, OverflowError):
            continue
        coder = registry.get_coder(RowTypeConstraint.from_fields(fields.beam_types))
        assert coder.decode(coder.encode(beam.Row(**found))) is not None


@pytest.mark.parametrize("name", ["due-date", "class", "_hidden", "two words"])
def test_a_property_that_no_field_can_be_named_is_refused_and_accepted_as_json(name):
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    for form in ("struct", "flat"):
        with pytest.raises(JobSpecError, match=r"`prompt\.output_schema`: no field of a Beam row can be named"):
            AnswerFields.of(schema, form).beam_types  # noqa: B018
    assert AnswerFields.of(schema, "json").beam_types == [("answer", str)]
