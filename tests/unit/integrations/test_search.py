"""A question and the texts of a job have vectors of one kind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llmbeam_sandbox import Fault, Sandbox
from llmbeam_sandbox.models.embedding.base import vector

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.integrations.search import embed_query
from airflow_provider_llmbeam.providers.errors import ApiError

QUESTION = "What is broken?"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox) -> None:
    """Connections whose keys are nowhere else."""
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name, address in (("gemini", sandbox.gemini_url), ("openai", sandbox.openai_url)):
        connection = {"conn_type": "llmbeam", "host": address, "password": "k"}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))


@pytest.mark.parametrize("name", ["gemini", "openai"])
def test_a_question_that_is_a_text_of_the_job_has_its_vector(sandbox: Sandbox, keys: None, name: str) -> None:
    model = {"gemini": "gemini-embedding-001", "openai": {"type": "openai", "name": "text-embedding-3-small"}}
    found = embed_query(QUESTION, model=model[name], embedding={"dimensions": 16}, llmbeam_conn_id=name)
    named = model[name] if isinstance(model[name], str) else model[name]["name"]
    assert found == pytest.approx(vector(QUESTION, model=named, dimensions=16))
    assert len(sandbox.requests) == 1


@pytest.mark.parametrize(
    ("of_texts", "of_question"),
    [
        ("RETRIEVAL_DOCUMENT", "RETRIEVAL_QUERY"),
        ("SEMANTIC_SIMILARITY", "SEMANTIC_SIMILARITY"),
        ("CODE_RETRIEVAL_QUERY", "CODE_RETRIEVAL_QUERY"),
        (None, None),
    ],
)
def test_a_question_has_the_task_that_belongs_to_that_of_the_texts(of_texts: Any, of_question: Any) -> None:
    echo = {"type": "echo"}
    found = embed_query(QUESTION, model=echo, embedding={"task_type": of_texts, "dimensions": 4})
    # The vectors of the echo model depend on the task.
    assert found == embed_query(QUESTION, model=echo, embedding={"task_type": of_question, "dimensions": 4})
    assert len(found) == 4


def test_a_refusal_has_the_words_of_the_server(sandbox: Sandbox, keys: None) -> None:
    sandbox.faults.queue("openai.embeddings", Fault(kind="error", http_status=400, message="Too long."))
    model = {"type": "openai", "name": "text-embedding-3-small"}
    with pytest.raises(ApiError, match=r"The question has no vector: HTTP 400: Too long\."):
        embed_query(QUESTION, model=model, llmbeam_conn_id="openai")


@pytest.mark.parametrize("question", ["", " \n"])
def test_an_empty_question_is_refused_before_anything_is_sent(sandbox: Sandbox, question: str) -> None:
    with pytest.raises(JobSpecError, match=r"`question`: must be a text; got .* Nothing was sent or billed"):
        embed_query(question, model="gemini-embedding-001")
    assert not len(sandbox.requests)


def test_a_model_without_vectors_is_refused() -> None:
    model = {"type": "vertex_endpoint", "name": "g", "endpoint": "projects/p/locations/l/endpoints/1"}
    with pytest.raises(JobSpecError, match=r"has no vectors\. Expected that of the job"):
        embed_query(QUESTION, model=model)
