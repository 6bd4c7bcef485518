from __future__ import annotations

import gc
import os
import pickle
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.beam import LLMModelHandler
from airflow_provider_llmbeam.engine.journal.entry import read_segment
from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.engine.plan import StaticBatching
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import BudgetExceededError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.job_handler import BYTES_PER_BATCH_UNIT
from airflow_provider_llmbeam.pipeline.pacing.machine_governor import MachineGovernor
from airflow_provider_llmbeam.spec import (
    Batching,
    EchoModel,
    GeminiModel,
    Limits,
    OpenAIModel,
    Price,
    VertexEndpointModel,
)

ECHO = EchoModel(type="echo", name="parrot")
SECRET = "projects/p/secrets/k/versions/1"


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert "llmbeam-engine" not in {thread.name for thread in set(threading.enumerate()) - before}


def answers(handler: LLMModelHandler[Any], batch: list[Any]) -> list[Any]:
    model = handler.load_model()
    return handler.run_inference(batch, model)


def test_there_is_one_result_per_example_in_order() -> None:
    results = answers(LLMModelHandler(ECHO), ["a", Prompt("bb"), ""])
    assert [result.example for result in results] == ["a", Prompt("bb"), ""]
    assert {result.model_id for result in results} == {"parrot"}
    assert [type(result.inference) for result in results] == [Completion, Completion, Failure]
    assert results[1].inference.text == "bb"
    assert results[2].inference.message == "the answer is empty"


def test_a_budget_needs_the_price_of_the_tier_that_is_asked_for() -> None:
    price = Price(input_usd_per_million_tokens=0.3, output_usd_per_million_tokens=2.5)
    limits = Limits(budget_usd=1.0, price=price)
    LLMModelHandler(GeminiModel(), limits=limits, service_tier="flex")
    with pytest.raises(JobSpecError, match=r"`limits\.price`: this field is needed with `priority_ratio`"):
        LLMModelHandler(GeminiModel(), limits=limits, service_tier="priority")
    dear = price.model_copy(update={"priority_ratio": 1.8})
    LLMModelHandler(GeminiModel(), limits=Limits(budget_usd=1.0, price=dear), service_tier="priority")


def test_an_empty_batch_has_no_results() -> None:
    assert answers(LLMModelHandler(ECHO), []) == []


def test_any_example_can_carry_its_prompt() -> None:
    handler = LLMModelHandler(ECHO, prompt_of=lambda row: row["text"])
    (result,) = answers(handler, [{"text": "hi"}])
    assert result.example == {"text": "hi"}
    assert result.inference.text == "hi"


def test_a_structured_answer_is_checked() -> None:
    handler = LLMModelHandler(ECHO, output_schema={"type": "object"})
    good, bad = answers(handler, ['{"a": 1}', "[]"])
    assert good.inference.parsed == {"a": 1}
    assert bad.inference.kind == "invalid_output"


def test_answers_are_in_the_journal_when_the_batch_is_handed_over(tmp_path: Path) -> None:
    model = (handler := LLMModelHandler(ECHO, journal_uri=f"{tmp_path}/journal/")).load_model()
    handler.run_inference(["a", "b"], model)
    (segment,) = (tmp_path / "journal").iterdir()
    assert {entry.outcome.text for entry in read_segment(str(segment), storage.open)} == {"a", "b"}
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o700
    del model


@pytest.mark.parametrize("directory", ["runs[1]/journal", "runs-?", "runs*", "", " "])
def test_a_journal_that_would_be_a_glob_is_refused(directory: str) -> None:
    with pytest.raises(JobSpecError, match=r"`journal_uri`: must .*; got .* Nothing was sent or billed\."):
        LLMModelHandler(ECHO, journal_uri=directory)


def test_a_client_that_cannot_be_opened_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    with pytest.raises(JobSpecError):
        LLMModelHandler(GeminiModel()).load_model()


def test_a_budget_of_a_model_of_unknown_price_is_refused() -> None:
    model = OpenAIModel(type="openai", name="gemma", base_url="http://127.0.0.1:1/v1")
    expected = (
        r"^`limits\.price`: this field is needed .* the price of openai model 'gemma' is not known, .* Nothing"
    )
    with pytest.raises(JobSpecError, match=expected):
        LLMModelHandler(model, limits=Limits(budget_usd=1.0))


def test_the_parts_may_be_plain_data() -> None:
    plain = LLMModelHandler[str](
        {"type": "echo"},
        generation={"max_output_tokens": 8},
        limits={"requests_per_minute": 60_000},
        batching={"max_batch_size": 3},
    )
    assert answers(plain, ["a"])[0].inference.text
    assert plain.batch_elements_kwargs()["max_batch_size"] == 3
    (vector,) = answers(LLMModelHandler("echo", embedding={}), ["a"])
    assert isinstance(vector.inference.parsed, list)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "gpt-5"}, "`model`: is not a name of Gemini, .*; got 'gpt-5'"),
        ({"model": {"type": "ecko"}}, r"`model\.type`: must be one of .*; got 'ecko'"),
        ({"limits": {"requests_per_minut": 1}}, r"`limits\.requests_per_minut`: .* did you mean"),
        ({"generation": "hot"}, "`generation`: must be an object .*; got 'hot'"),
        ({"batching": None}, "`batching`: must be an object with named fields; got None"),
        ({"embedding": {"dimensions": 0}}, r"`embedding\.dimensions`: must be .*; got 0"),
        (
            {"output_schema": {"type": "objekt"}},
            r"`prompt\.output_schema`: is not a JSON Schema \('objekt' .*; got \{",
        ),
        (
            {"output_schema": {"label": "text"}},
            r"`prompt\.output_schema`: accepts any answer, as 'label' is no keyword",
        ),
        (
            {"output_schema": [5]},
            r"`prompt\.output_schema`: must be an object with named fields; got \[5\]",
        ),
        ({"max_repairs": 6}, r"`prompt\.max_repairs`: must be less than or equal to 5; got 6"),
        (
            {"service_tier": "fast"},
            r"`inference\.service_tier`: must be 'standard', 'flex', .* 'priority', .*; got 'fast'",
        ),
        ({"service_tier": None}, r"`inference\.service_tier`: must be .*; got None"),
        ({"prompt_of": "text"}, "`prompt_of`: must be a function; got 'text'"),
        ({"fingerprint_of": {"id": 1}}, r"`fingerprint_of`: must be a function; got \{'id': …\}"),
        ({"journal_uri": 3}, "`journal_uri`: must be a text; got 3"),
        ({"journal_uri": Path("journal")}, r"`journal_uri`: must be a text; got PosixPath\('journal'\)"),
        ({"journal_uri": "~/journal"}, "`journal_uri`: would be a local path that begins with '~'"),
        ({"journal_uri": "gs:/b/rates"}, "`journal_uri`: would be a local path that begins with 'gs:/'"),
        (
            {"journal_uri": "nope://b/x"},
            "`journal_uri` 'nope://b/x': Beam reads no nope://. Expected a local path",
        ),
        ({"journal_uri": "GS://b/x"}, "`journal_uri` 'GS://b/x': Beam reads no GS://"),
        ({"journal_uri": ""}, "`journal_uri`: must name a directory; got ''"),
        ({"upload_prefix": 3}, "`upload_prefix`: must be a text; got 3"),
        ({"environment_secrets": ["x"]}, "`environment_secrets`: must be an object with named fields; got '…'"),
        ({"environment_secrets": {"A-B": SECRET}}, "`environment_secrets`: has 'A-B', which cannot be the name"),
        ({"environment_secrets": {"A": "s3cret"}}, "`environment_secrets`: must name a secret for 'A': .*'…'"),
    ],
    ids=str,
)
def test_a_part_that_is_not_valid_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(JobSpecError, match=rf"^{message}.* Nothing was sent or billed\.$"):
        LLMModelHandler(**{"model": ECHO} | arguments)


@pytest.mark.parametrize("arguments", [None, {}])
def test_no_inference_args_are_fine(arguments: dict[str, Any] | None) -> None:
    LLMModelHandler(ECHO).validate_inference_args(arguments)


def test_inference_args_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"`inference_args` are not used, set `generation` instead; got \{'a': 1\}"
    ):
        LLMModelHandler(ECHO).validate_inference_args({"a": 1})


@given(size=st.integers(1, 3000), length=st.integers(0, 200_000))
def test_a_prompt_never_weighs_more_than_a_batch(size: int, length: int) -> None:
    """An element heavier than a batch makes Beam emit an empty one."""
    options = LLMModelHandler(ECHO, batching=Batching(max_batch_size=size)).batch_elements_kwargs()
    weight = options["element_size_fn"]("x" * length)
    assert options["min_batch_size"] == options["max_batch_size"] == size
    assert 1 <= weight <= size
    assert weight == min(size, 1 + length // BYTES_PER_BATCH_UNIT)


def test_a_batch_is_weighed_by_its_prompts() -> None:
    handler = LLMModelHandler(ECHO)
    assert handler.get_num_bytes(["abc", Prompt("de")]) == 5
    assert handler.get_metrics_namespace() == "llmbeam"


def test_a_bundle_that_is_retried_in_the_same_process_has_no_new_budget() -> None:
    price = {"input_usd_per_million_tokens": 1e6, "output_usd_per_million_tokens": 0}
    limits = Limits.parse({"budget_usd": 1, "price": price, "max_in_flight": 1})
    handler = pickle.loads(pickle.dumps(LLMModelHandler(ECHO, limits=limits)))
    for batch in (["two words", "duo words"], ["one of more words than two", "two of more words than two"]):
        with pytest.raises(BudgetExceededError, match=r"has spent \$2 on 2 input"):
            answers(handler, batch)
    assert answers(LLMModelHandler(ECHO, limits=limits), ["a"]), "another run has one of its own"
    gc.collect()  # the errors hold references to their engines


ENDPOINT = VertexEndpointModel(
    type="vertex_endpoint", name="gemma", endpoint="projects/p/locations/us-central1/endpoints/1"
)
CLOUD_RUN = OpenAIModel(type="openai", name="gemma", id_token_audience="https://a.run.app")


def test_a_quota_belongs_to_the_api_key_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "g")
    monkeypatch.setenv("OPENAI_API_KEY", "o")
    models = (GeminiModel(), OpenAIModel(type="openai", name="gpt"), ENDPOINT, CLOUD_RUN)
    assert [model.api.key(os.environ) for model in models] == ["g", "o", None, None]


@pytest.mark.parametrize("limits", [Limits(), Limits(requests_per_minute=60)], ids=["no quota", "a quota"])
@pytest.mark.parametrize("model", [ENDPOINT, CLOUD_RUN], ids=["vertex", "cloud run"])
def test_an_endpoint_of_google_cloud_is_paced_by_its_latency_unless_a_quota_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Any, limits: Limits
) -> None:
    monkeypatch.setattr("airflow_provider_llmbeam.pipeline.job_handler.open_backend", lambda *_, **__: object())
    engine = LLMModelHandler(model, limits=limits)._open_engine(MachineGovernor(model, limits, None))
    assert (engine._concurrency is not None) == (limits.requests_per_minute is None)


@pytest.mark.parametrize(("limits", "reserved"), [(Limits(), 0), (Limits(tokens_per_minute=6000), 261)])
def test_output_tokens_are_guessed_before_the_first_answer_only_for_a_stated_quota(
    monkeypatch: pytest.MonkeyPatch, limits: Limits, reserved: float
) -> None:
    monkeypatch.setattr("airflow_provider_llmbeam.pipeline.job_handler.open_backend", lambda *_, **__: object())
    engine = LLMModelHandler(ENDPOINT, limits=limits)._open_engine(MachineGovernor(ENDPOINT, limits, None))
    assert engine._buckets.reserved_tokens((5,)) == reserved


def test_a_backend_with_several_prompts_per_request_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Backend:
        limits = StaticBatching(max_padded_tokens=10**6, max_instances=32, max_bytes=7)

    handler = LLMModelHandler(ENDPOINT, batching=Batching(max_instances=8))
    found = handler._static_batching(Backend())  # type: ignore[arg-type]
    assert (found.max_instances, found.max_padded_tokens, found.max_bytes) == (8, 16_384, 7)
