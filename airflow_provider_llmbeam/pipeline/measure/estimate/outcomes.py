"""Outcomes of a few prompts in this process, without a graph: those in the journal, and those of new requests."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from types import MappingProxyType

from airflow_provider_llmbeam.engine.journal.journal import better
from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobFailedError, LLMBeamError
from airflow_provider_llmbeam.pipeline.answer_form import answer_form, oldest_useful_at
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.elements import Request, Row
from airflow_provider_llmbeam.pipeline.job_handler import JobHandler
from airflow_provider_llmbeam.pipeline.transforms.reuse import journal_entries
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.tier import ordinary_tier


def earlier_outcomes(spec: JobSpec, fingerprints: Container[str]) -> tuple[dict[str, Outcome], int]:
    """Returns the usable outcomes in the journal of a job by fingerprint, and the number of all its entries.

    Args:
        spec: The job.
        fingerprints: Fingerprints of the prompts whose outcomes are wanted.
    """
    now = time.time()
    known: dict[str, Outcome] = {}
    recorded, form = 0, answer_form(spec, RunContext(started_at=now))
    for entry in journal_entries(spec, oldest_useful_at(spec, now)):
        recorded += 1
        if entry.fingerprint in fingerprints and form.accepts(entry.outcome):
            known[entry.fingerprint] = better(entry.outcome, known.get(entry.fingerprint))
    return known, recorded


def online_latencies(outcomes: Iterable[Outcome]) -> list[float]:
    """Returns the latencies of answers, in seconds, without those of batch inference, which have none."""
    completions = (each for each in outcomes if isinstance(each, Completion))
    return [each.latency_seconds for each in completions if each.service_tier != "batch"]


def send(
    spec: JobSpec,
    prompts: Mapping[str, Prompt],
    rows: Mapping[str, Sequence[Row]] = MappingProxyType({}),
    about: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, Outcome]:
    """Sends prompts as the job does, with its journal; returns their outcomes by fingerprint.

    Args:
        spec: The job.
        prompts: Prompts by fingerprint.
        rows: Rows of the source by fingerprint, with their key columns at least, for the audit.
        about: By the fingerprint of a prompt for a verdict, those of the prompts that it is about.

    Raises:
        JobFailedError: Not all could be sent or recorded.
        LLMBeamError: The budget is spent, or the server is down.
    """
    if not prompts:
        return {}
    requests = [
        Request(each, tuple(rows.get(each, ())), prompt, tuple(dict.fromkeys(about.get(each, ()))))
        for each, prompt in prompts.items()
    ]
    inference = spec.inference.model_copy(update={"service_tier": ordinary_tier(spec.inference.service_tier)})
    context = RunContext(started_at=time.time())
    handler = JobHandler[Request](spec.model_copy(update={"inference": inference}), context)
    try:
        results = handler.run_inference(requests, handler.load_model())
    except LLMBeamError:
        raise
    except Exception as error:
        raise JobFailedError(
            f"The {len(requests)} prompts of job {spec.name!r} could not all be sent or recorded: "
            f"{type(error).__name__}: {error} Sent requests may be billed. The answers so far are in "
            f"{spec.paths.journal_uri!r}; a retry, or the job, sends only the rest."
        ) from error
    return {result.example.fingerprint: result.inference for result in results}
