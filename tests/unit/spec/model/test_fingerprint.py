from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.spec import EchoModel, GeminiModel, Generation, OpenAIModel, VertexEndpointModel
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter

MODEL = GeminiModel(name="gemini-2.5-flash")
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
any_text = st.text(st.characters(exclude_categories=()), max_size=20)


def fingerprint(
    model: Any = MODEL,
    generation: Generation = Generation(),  # noqa: B008 - frozen
    schema: Any = None,
    text: str = "Hello",
    system: str | None = None,
    media: tuple[tuple[str, str | None], ...] = (),
) -> str:
    return Fingerprinter(model, generation, schema)(text, system, media)


def test_a_fingerprint_never_changes_between_versions() -> None:
    """A different value would request, and pay for, every answer again. It needs a new version number inside."""
    at_zero = Generation(temperature=0.0)
    assert fingerprint(generation=at_zero) == "60e76f425e8ff497b6ddf436cfa020b0bff91aee7669b1344664bf88c0510e3b"
    assert fingerprint() == "2eaa983c249ac9c2fd24cea9bec2963c7fc3b079adba482bc6c4b0e5625a3e2f"
    of_all_parts = fingerprint(system='"ä"\n', media=(("gs://b/a.png", None), ("gs://b/b.png", "image/png")))
    assert of_all_parts == "3b0e07b1f7016fd78c4890da1c9dc6b5913cb25e2b4f455a2b5ca4a5b3b76083"


def test_labels_request_no_answer_again() -> None:
    assert fingerprint(GeminiModel(name=MODEL.name, project="p", labels={"team": "data"})) == fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"text": "Hello "},
        {"system": "Be brief."},
        {"system": ""},
        {"media": (("gs://b/a.png", None),)},
        {"media": (("gs://b/a.png", "image/png"),)},
        {"schema": SCHEMA},
        {"schema": {}},
        {"model": GeminiModel(name="gemini-2.5-pro")},
        {"model": OpenAIModel(type="openai", name="gemini-2.5-flash")},
        {"generation": Generation(max_output_tokens=7)},
        {"generation": Generation(temperature=0.5)},
        {"generation": Generation(temperature=0.0)},
        {"generation": Generation(top_p=0.5)},
        {"generation": Generation(seed=1)},
        {"generation": Generation(stop_sequences=("END",))},
        {"generation": Generation(thinking_budget_tokens=0)},
    ],
    ids=str,
)
def test_everything_that_affects_the_answer_changes_the_fingerprint(change: dict[str, Any]) -> None:
    assert fingerprint(**change) != fingerprint()


def test_every_generation_parameter_changes_the_fingerprint() -> None:
    changed = {
        "max_output_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 5,
        "seed": 1,
        "stop_sequences": ("END",),
        "thinking_budget_tokens": 0,
        "thinking_level": "low",
        "reasoning_effort": "low",
        "media_resolution": "low",
        "safety_settings": {"HARM_CATEGORY_HARASSMENT": "OFF"},
        "model_armor": {"prompt": "projects/p/locations/us-central1/templates/t"},
        "google_search": True,
        "logprobs": True,
        "structured_outputs": {"choice": ["a", "b"]},
        "extra_body": {"min_p": 0.1},
        "strip_reasoning": False,
    }
    how_it_arrives = {"stream", "stream_idle_timeout_seconds", "keep_reasoning"}
    assert changed.keys() == Generation.model_fields.keys() - how_it_arrives, "a new parameter: extend this test"
    arriving = Generation(stream=True, stream_idle_timeout_seconds=1, keep_reasoning=True)
    assert fingerprint(generation=arriving) == fingerprint()
    found = {fingerprint(generation=Generation(**{name: value})) for name, value in changed.items()}
    assert len(found | {fingerprint()}) == len(changed) + 1


@pytest.mark.parametrize(
    "model",
    [
        GeminiModel(name="gemini-2.5-flash", location="europe-west1"),
        GeminiModel(name="gemini-2.5-flash", project="billed-elsewhere"),
        GeminiModel(name="gemini-2.5-flash", base_url="http://127.0.0.1:8000"),
    ],
    ids=str,
)
def test_the_location_of_a_gemini_model_does_not_change_the_fingerprint(model: GeminiModel) -> None:
    assert fingerprint(model=model) == fingerprint()


def test_the_address_of_an_openai_model_does_not_change_the_fingerprint() -> None:
    here = OpenAIModel(type="openai", name="gemma")
    there = OpenAIModel(type="openai", name="gemma", base_url="http://host/v1", api_key_env="OTHER_KEY")
    assert fingerprint(model=here) == fingerprint(model=there)


def test_the_latency_of_an_echo_does_not_change_the_fingerprint() -> None:
    slow = EchoModel(type="echo", latency_seconds=1)
    assert fingerprint(model=slow) == fingerprint(model=EchoModel(type="echo"))


def test_the_order_of_the_keys_of_a_schema_does_not_change_the_fingerprint() -> None:
    turned = {key: SCHEMA[key] for key in reversed(SCHEMA)}
    assert fingerprint(schema=turned) == fingerprint(schema=SCHEMA)


@given(any_text, any_text, any_text, any_text)
def test_prompts_have_one_fingerprint_only_when_they_are_equal(a: str, b: str, c: str, d: str) -> None:
    name = Fingerprinter(MODEL, Generation(), None)
    assert (name(a, b) == name(c, d)) == ((a, b) == (c, d))


def test_text_cannot_pose_as_a_system_instruction() -> None:
    assert fingerprint(text="ab", system="c") != fingerprint(text="a", system="bc")
    assert fingerprint(text='a", "b', system=None) != fingerprint(text="a", system="b")


def test_a_new_endpoint_with_the_same_model_keeps_its_answers() -> None:
    def of_endpoint(number: int, request_format: str = "chat") -> str:
        endpoint = f"projects/p/locations/us-central1/endpoints/{number}"
        fields = {
            "type": "vertex_endpoint",
            "name": "gemma",
            "endpoint": endpoint,
            "request_format": request_format,
        }
        return fingerprint(VertexEndpointModel.parse(fields))

    assert of_endpoint(1) == of_endpoint(2)
    assert of_endpoint(1, "raw") == of_endpoint(2, "instances") != of_endpoint(1)


def test_an_answer_of_one_version_of_a_registered_model_is_not_that_of_another() -> None:
    def of_version(version: str) -> str:
        fields = {"type": "vertex_endpoint", "endpoint": "projects/p/locations/us-central1/endpoints/1"}
        name = f"projects/p/locations/us-central1/models/support@{version}"
        return fingerprint(VertexEndpointModel.parse({**fields, "name": name}))

    assert of_version("3") == of_version("3") != of_version("4")


def test_a_service_on_cloud_run_keeps_the_answers_of_its_model() -> None:
    here = OpenAIModel(type="openai", name="gemma")
    assert fingerprint(here) == fingerprint(here.model_copy(update={"id_token_audience": "https://a.run.app"}))
