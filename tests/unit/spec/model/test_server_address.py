from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import EchoModel, GeminiModel, JobSpec, OpenAIModel
from airflow_provider_llmbeam.spec.evaluation import Comparison, Evaluation
from airflow_provider_llmbeam.spec.model.server import with_base_url, with_base_urls

VARIABLES = {
    "GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:1",
    "GOOGLE_VERTEX_BASE_URL": "http://127.0.0.1:2/",
    "OPENAI_BASE_URL": "http://127.0.0.1:3/v1",
}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (GeminiModel(), "http://127.0.0.1:1"),
        (GeminiModel(project="p"), "http://127.0.0.1:2"),
        (OpenAIModel(type="openai", name="m"), "http://127.0.0.1:3/v1"),
        (GeminiModel(base_url="http://own"), "http://own"),
        (OpenAIModel(type="openai", name="m", base_url="http://own/v1"), "http://own/v1"),
        (OpenAIModel(type="openai", name="m", base_url="https://api.openai.com/v1"), "https://api.openai.com/v1"),
    ],
)
def test_the_address_of_the_environment_is_used_unless_the_spec_has_one(model: Any, expected: str) -> None:
    assert with_base_url(model, VARIABLES).base_url == expected


def test_the_clients_of_the_providers_use_the_same_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import openai
    from google.genai import _base_url

    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    assert _base_url.get_base_url(False) == VARIABLES["GOOGLE_GEMINI_BASE_URL"]
    assert _base_url.get_base_url(True) == VARIABLES["GOOGLE_VERTEX_BASE_URL"]
    with openai.OpenAI(api_key="any") as client:
        assert str(client.base_url).rstrip("/") == VARIABLES["OPENAI_BASE_URL"]


@pytest.mark.parametrize("environment", [{}, {"GOOGLE_GEMINI_BASE_URL": ""}, {"OPENAI_BASE_URL": "http://a"}])
def test_a_model_keeps_its_address_without_a_variable_of_its_own(environment: dict[str, str]) -> None:
    assert with_base_url(GeminiModel(), environment) == GeminiModel()
    assert with_base_url(EchoModel(type="echo"), VARIABLES) == EchoModel(type="echo")


def test_an_address_that_is_none_names_its_variable() -> None:
    with pytest.raises(JobSpecError) as caught:
        with_base_url(GeminiModel(), {"GOOGLE_GEMINI_BASE_URL": "127.0.0.1:8787"})
    assert str(caught.value) == (
        "`GOOGLE_GEMINI_BASE_URL` in the environment, the address of the gemini server: must start with http:// "
        "or https://; got '127.0.0.1:8787'. Correct it, unset it, or set `model.base_url`. Nothing was sent "
        "or billed."
    )


def test_an_address_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(JobSpecError, match="must not hold a user or a password") as caught:
        with_base_url(OpenAIModel(type="openai", name="m"), {"OPENAI_BASE_URL": "http://u:topsecret@h/v1"})
    assert "topsecret" not in str(caught.value)
    assert len(str(caught.value)) <= 240


def test_the_log_says_where_requests_go_and_why(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    log = logging.getLogger("llmbeam.test")
    with caplog.at_level(logging.INFO, log.name):
        with_base_url(GeminiModel(), VARIABLES, log)
        with_base_url(GeminiModel(base_url="http://own"), VARIABLES, log)
    assert caplog.messages == [
        "Requests go to http://127.0.0.1:1, as `GOOGLE_GEMINI_BASE_URL` is set and `model.base_url` is not."
    ]


def test_all_models_of_a_job_an_evaluation_and_a_comparison_get_the_address_of_the_environment() -> None:
    """One line of the log for each address, and a value without such a model is returned as it is."""
    lines: list[tuple[object, ...]] = []

    class Log:
        def info(self, message: str, /, *args: object) -> None:
            lines.append((message, *args))

    openai = {"type": "openai", "name": "m"}
    job = JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": "in.csv", "key": "id"},
            "prompt": "{{ row.text }}",
            "model": "gemini-2.5-flash",
            "sink": "out/",
            "safety": {"moderation": {"model": "gemini-2.5-flash-lite"}},
        }
    )
    assert [model.base_url for model in with_base_urls(job, VARIABLES, Log()).models] == ["http://127.0.0.1:1"] * 2
    assert len(lines) == 1
    judge = {"type": "judge", "model": openai, "rubric": "{{ row.answer }}"}
    golden = {"uri": "g.csv", "key": "id"}
    evaluation = Evaluation.parse({"golden": golden, "metrics": {"a": "exact", "b": judge}})
    pairs = {"model": "gemini-2.5-pro", "rubric": "{{ row.first }} {{ row.second }}"}
    comparison = Comparison.parse({"other": {"model": openai}, "judge": pairs})
    found = [*with_base_urls(evaluation, VARIABLES).models, *with_base_urls(comparison, VARIABLES).models]
    assert [model.base_url for model in found] == [
        "http://127.0.0.1:3/v1",
        "http://127.0.0.1:3/v1",
        "http://127.0.0.1:1",
    ]
    assert all(with_base_urls(value, {}) is value for value in (job, evaluation, comparison))
