"""Validation of embedding jobs."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_llmbeam.spec import EchoModel, Embedding, Generation, JobSpec
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter


def problem(data: dict[str, Any]) -> str:
    (found,) = JobSpec.problems(data)
    return str(found)


def test_a_job_generates_text_by_default(job) -> None:
    spec = JobSpec.parse(job())
    assert (spec.task, spec.embedding) == ("generate", None)


def test_an_embedding_job_has_its_parameters_even_when_none_is_given(job) -> None:
    spec = JobSpec.parse(job(task="embed"))
    assert spec.embedding == Embedding()
    assert JobSpec.from_json(spec.model_dump_json()) == spec
    assert JobSpec.parse(job(task="embed", embedding=None)) == spec


def test_embedding_parameters_round_trip_through_json(job) -> None:
    spec = JobSpec.parse(job(task="embed", embedding={"dimensions": 256, "task_type": "RETRIEVAL_DOCUMENT"}))
    assert JobSpec.from_json(spec.model_dump_json()) == spec


def test_parameters_of_vectors_need_the_task(job) -> None:
    assert problem(job(embedding={"dimensions": 8})) == "`task`: must be 'embed' with `embedding`; got 'generate'."


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("prompt.system", {"prompt": {"template": "{{ row.t }}", "system": "Be brief."}}),
        ("prompt.output_schema", {"prompt": {"template": "{{ row.t }}", "output_schema": {}}}),
        ("prompt.media", {"prompt": {"template": "{{ row.t }}", "media": [{"uri": "gs://b/a.png"}]}}),
        ("generation.stream", {"generation": {"stream": True}}),
        ("generation.max_output_tokens", {"generation": {"max_output_tokens": 7}}),
    ],
)
def test_parameters_that_do_not_apply_to_embeddings_are_refused_by_name(
    job, part: str, value: dict[str, Any]
) -> None:
    assert f"`task`: 'embed' takes no `{part}`: " in problem(job(task="embed", **value))


def test_generation_parameters_with_default_values_are_accepted(job) -> None:
    assert JobSpec.parse(job(task="embed", generation={"max_output_tokens": 1024})).task == "embed"


def test_openai_has_no_task_type(job) -> None:
    data = job(task="embed", model={"type": "openai", "name": "m"}, embedding={"task_type": "CLUSTERING"})
    assert "`embedding.task_type`: the OpenAI API does not support this field" in problem(data)


@pytest.mark.parametrize("model", [{}, {"name": "gemini-2.5-pro"}])
def test_a_gemini_model_that_generates_text_is_refused(job, model: dict[str, Any]) -> None:
    found = problem(job(task="embed", model={"type": "gemini", **model}))
    assert "must be an embedding model to embed, e.g. 'gemini-embedding-001'; this one generates texts" in found


@pytest.mark.parametrize(
    "name",
    [
        "gemini-embedding-001",
        "text-embedding-005",
        "models/gemini-embedding-001",
        "projects/p/locations/l/endpoints/1",
    ],
)
def test_a_gemini_model_that_may_embed_is_accepted(job, name: str) -> None:
    assert JobSpec.parse(job(task="embed", model={"type": "gemini", "name": name})).model.name == name


@pytest.mark.parametrize(
    "embedding", [{"dimensions": 0}, {"task_type": "clustering"}, {"task_type": ""}, {"size": 1}]
)
def test_invalid_embedding_parameters_are_refused(job, embedding: dict[str, Any]) -> None:
    (found,) = JobSpec.problems(job(task="embed", embedding=embedding))
    assert found.field == f"embedding.{next(iter(embedding))}"


@pytest.mark.parametrize("number", [0, -1])
def test_a_request_holds_at_least_one_text(job, number: int) -> None:
    (found,) = JobSpec.problems(job(batching={"max_instances": number}))
    assert found.field == "batching.max_instances"


def test_everything_that_affects_a_vector_changes_its_fingerprint() -> None:
    model = EchoModel(type="echo")
    embeddings = [None, Embedding(), Embedding(dimensions=8), Embedding(task_type="CLUSTERING")]
    names = {Fingerprinter(model, Generation(), None, embedding)("text", None) for embedding in embeddings}
    names.add(Fingerprinter(EchoModel(type="echo", name="other"), Generation(), None, Embedding())("text", None))
    names.add(Fingerprinter(model, Generation(), None, Embedding())("texts", None))
    assert len(names) == 6


def test_the_fingerprint_of_a_vector_never_changes_between_versions() -> None:
    """A different value would request, and pay for, every vector again."""
    name = Fingerprinter(EchoModel(type="echo"), Generation(), None, Embedding())("Hello", None)
    assert name == Fingerprinter(EchoModel(type="echo"), Generation(seed=1), {}, Embedding())("Hello", None)
    assert name == "1bb00aefbc210375c297ca23cf75abc3535912ec7ad93d24889a8bc8bdad3224"
