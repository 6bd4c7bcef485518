"""The question's side of a search by meaning: the vector of a text, made as those of a job are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_llmbeam.engine.output import VectorParser
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook, open_model
from airflow_provider_llmbeam.providers.access import FixedAccess
from airflow_provider_llmbeam.providers.errors import ApiError
from airflow_provider_llmbeam.providers.registry import part_of
from airflow_provider_llmbeam.spec.model import Embedding

#: Task of a question by that of the texts; with every other one both are the same.
#: Source: ai.google.dev/gemini-api/docs/embeddings, "Supported task types".
_OF_QUESTION = {"RETRIEVAL_DOCUMENT": "RETRIEVAL_QUERY"}


def embed_query(
    question: str,
    *,
    model: Mapping[str, Any] | str,
    embedding: Embedding | Mapping[str, Any] | None = None,
    llmbeam_conn_id: str = LLMBeamHook.default_conn_name,
    gcp_conn_id: str = "google_cloud_default",
    impersonation_chain: str | Sequence[str] | None = None,
) -> list[float]:
    """Returns the vector of a question, to compare with the vectors of a job; sends one request.

        embed_query("What is broken?", model="gemini-embedding-001", embedding={"dimensions": 768})

    Args:
        question: The question, with the beginning that the model wants, e.g. "query: " where the prompt of the job
            begins with "passage: ".
        model: The `model` of the job.
        embedding: The `embedding` of the job. For texts of the task `RETRIEVAL_DOCUMENT` the question has the task
            `RETRIEVAL_QUERY`; every other `task_type` is that of the question, too.
        llmbeam_conn_id: Connection with key, base URL, project and location.
        gcp_conn_id: Connection with the credentials for Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.

    Raises:
        JobSpecError: The question is empty, the model has no vectors, or there is no key.
        ApiError: The server refuses the request, or does not answer it; the message has its words.
    """
    if not question.strip():
        raise JobSpecError(f"`question`: must be a text; got {question!r}.")
    found, authenticate = open_model(
        model,
        llmbeam_conn_id=llmbeam_conn_id,
        gcp_conn_id=gcp_conn_id,
        impersonation_chain=impersonation_chain,
    )
    if (embeddings := part_of(found, "embeddings")) is None:
        raise JobSpecError(f"`model`: a model of type {found.type!r} has no vectors. Expected that of the job.")
    asked = Embedding.parse(embedding or {})
    task = _OF_QUESTION.get(asked.task_type or "", asked.task_type)
    asked = asked.model_copy(update={"task_type": task})
    backend = embeddings.open_embeddings(found, asked, FixedAccess(authenticate()))
    return asyncio.run(_ask(backend, question, asked))


async def _ask(backend: Any, question: str, embedding: Embedding) -> list[float]:
    try:
        return VectorParser(embedding.dimensions).parse(await backend.complete(Prompt(question)))
    except RequestError as error:
        status = "" if error.http_status is None else f"HTTP {error.http_status}: "
        raise ApiError(f"The question has no vector: {status}{error.message}") from None
    finally:
        await backend.aclose()
