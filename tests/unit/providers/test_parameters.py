"""Parameters of an answer against servers that check them, and what the servers report beside their answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.providers.gemini.batch_format import DeveloperFormat
from airflow_provider_llmbeam.providers.gemini.client import citations_of
from airflow_provider_llmbeam.providers.openai.client import read_reply
from airflow_provider_llmbeam.providers.reported import UsageReader
from airflow_provider_llmbeam.spec import GeminiModel, Generation, Model, OpenAIModel
from tests.hostile import altered, odd

SAFETY = {"HARM_CATEGORY_DANGEROUS_CONTENT": "BLOCK_ONLY_HIGH"}
ARMOR = {"prompt": "projects/p/locations/us-central1/templates/t"}


def ask(model: Model, generation: Generation, prompt: Prompt = Prompt("Hello there")) -> Reply | RequestError:  # noqa: B008
    async def main() -> Reply | RequestError:
        backend = open_backend(model, generation, None)
        try:
            return await backend.complete(prompt)
        except RequestError as error:
            return error
        finally:
            await backend.aclose()

    return asyncio.run(main())


@pytest.fixture(params=["developer", "vertex"])
def gemini(request, sandbox, google, monkeypatch) -> GeminiModel:
    monkeypatch.setenv("GOOGLE_API_KEY", "key")
    project = None if request.param == "developer" else "p"
    return GeminiModel(name="gemini-3-flash", project=project, base_url=sandbox.gemini_url)


@pytest.mark.parametrize(
    "generation",
    [
        Generation(thinking_level="minimal"),
        Generation(thinking_budget_tokens=-1),
        Generation(media_resolution="high"),
        Generation(safety_settings=SAFETY),
    ],
    ids=lambda generation: next(iter(generation.decisive().keys() - Generation().decisive().keys()), "budget"),
)
def test_gemini_takes_its_parameters(gemini, generation):
    assert isinstance(ask(gemini, generation), Reply)


def test_model_armor_is_of_vertex_ai_alone(gemini):
    reply = ask(gemini, Generation(model_armor=ARMOR))
    assert isinstance(reply, Reply) == (gemini.project is not None), reply


def test_the_pages_of_a_search_are_citations_of_the_answer(gemini):
    reply = ask(gemini, Generation(google_search=True))
    first = reply.text.partition(" ")[0]
    assert reply.citations == [
        {"uri": "https://example.com/first", "title": "example.com", "texts": [first]},
        {"uri": "https://example.org/second", "title": "example.org", "texts": []},
    ]
    assert ask(gemini, Generation()).citations is None


def test_the_probabilities_of_gemini_and_of_a_chat_server_have_a_mean(gemini, sandbox):
    assert ask(gemini, Generation(logprobs=True)).mean_logprob == -0.125
    chat = OpenAIModel(type="openai", name="gemma", base_url=sandbox.openai_url)
    assert ask(chat, Generation(logprobs=True)).mean_logprob == -0.25
    assert ask(chat, Generation()).mean_logprob is None


def test_an_unknown_effort_is_the_error_of_the_server_and_a_known_one_is_taken(sandbox):
    chat = OpenAIModel(type="openai", name="gemma", base_url=sandbox.openai_url)
    assert isinstance(ask(chat, Generation(reasoning_effort="minimal")), Reply)


def test_the_answer_of_vllm_is_one_of_the_choices(sandbox):
    chat = OpenAIModel(type="openai", name="gemma", base_url=sandbox.openai_url)
    restricted = Generation(structured_outputs={"choice": ["yes", "no"]})
    reply = ask(chat, restricted)
    assert reply.text in ("yes", "no")
    assert OutputParser(None, restricted.choices).parse(reply) is None


def test_an_answer_that_is_none_of_the_choices_is_invalid_as_of_a_server_that_ignores_them():
    reply = Reply(text="maybe", finish_reason="stop", tokens=Tokens(1, 1), model="m")
    with pytest.raises(RequestError) as invalid:
        OutputParser(None, ("yes", "no")).parse(reply)
    assert (invalid.value.kind, invalid.value.message) == (
        "invalid_output",
        "the answer is not one of 'yes', 'no' (`structured_outputs`): maybe",
    )


def test_safety_settings_are_in_request_files_as_well():
    lines = DeveloperFormat(GeminiModel(), Generation(safety_settings=SAFETY), None)
    _, line = lines.encode("f", Prompt("Hello"))
    assert json.loads(line)["request"]["safetySettings"] == [
        {"category": "HARM_CATEGORY_DANGEROUS_CONTENT", "threshold": "BLOCK_ONLY_HIGH"}
    ]


PAGE = {"web": {"uri": "https://example.com", "title": "example"}}
SUPPORT = {"segment": {"text": "Hi"}, "groundingChunkIndices": [0, 1]}


@pytest.mark.fuzz
@given(altered({"groundingChunks": [PAGE, PAGE], "groundingSupports": [SUPPORT, SUPPORT]}))
def test_any_value_that_a_server_reports_gives_citations_of_text_or_none(value: Any):
    found = citations_of(value)
    assert found is None or all(page.keys() == {"uri", "title", "texts"} for page in found)
    assert found is None or all(isinstance(text, str) for page in found for text in (page["uri"], *page["texts"]))


@pytest.mark.fuzz
@given(st.lists(st.floats(max_value=0.5) | odd, max_size=4))
def test_probabilities_of_any_kind_spoil_no_answer_of_a_chat_server(values: list[Any]):
    choice = {
        "message": {"content": "Hi"},
        "finish_reason": "stop",
        "logprobs": {"content": [{"logprob": value} for value in values]},
    }
    reply = read_reply({"choices": [choice]}, b"", Prompt("Hello"), "m", UsageReader("m"))
    assert reply.text == "Hi"
    assert reply.mean_logprob is None or reply.mean_logprob <= 0
