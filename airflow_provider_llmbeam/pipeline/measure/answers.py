"""The answers of a job to some rows, in this process and without a graph: from its journal, or by new requests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from airflow_provider_llmbeam.engine.journal.journal import better
from airflow_provider_llmbeam.engine.outcome import PERMANENT, REFUSED, Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import (
    JobFailedError,
    JobSpecError,
    LLMBeamError,
    PermanentFailureError,
)
from airflow_provider_llmbeam.pipeline.answer_form import answer_form, oldest_useful_at
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Request, Row, RowPrompt
from airflow_provider_llmbeam.pipeline.job_handler import JobHandler
from airflow_provider_llmbeam.pipeline.launch.keys import check_model
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts
from airflow_provider_llmbeam.pipeline.records import answer_value
from airflow_provider_llmbeam.pipeline.transforms.reuse import journal_entries
from airflow_provider_llmbeam.spec.characters import valid_value
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.tier import ordinary_tier
from airflow_provider_llmbeam.spec.protocol.counts import NANO

#: Kinds of failures that say something of the prompt or of the row, and nothing of the server.
_OF_THE_ROW: frozenset[FailureKind] = REFUSED | {
    "bad_request",
    "not_sent",
    "template_error",
    "media_error",
    "personal_data",
}

#: The prompt of a row, or why it has none.
Rendered = RowPrompt | Failure


@dataclass(frozen=True)
class Answers:
    """The outcomes of some rows.

    Attributes:
        by_key: Outcome of each row.
        sent: Outcomes of the requests that were sent for them now, one for each distinct prompt.
        fingerprints: Fingerprint of the prompt of each row that has become one.
        has_schema: Whether the answers are JSON values of an output schema.
    """

    by_key: Mapping[str, Outcome] = field(default_factory=dict)
    sent: tuple[Outcome, ...] = ()
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    has_schema: bool = False

    @property
    def cost_usd(self) -> float | None:
        """Cost of the requests that were sent now, in US dollars; `None` if no price is known."""
        return cost_usd(self.sent)

    @property
    def usd_per_thousand_rows(self) -> float | None:
        """Cost of a thousand such rows without duplicates, at the tier they were served at; `None` as above."""
        cost = cost_usd(self.by_key.values())
        return None if cost is None else cost / len(self.by_key) * 1000

    def values(self) -> dict[str, Any]:
        """Returns the answer of each answered row: a JSON value with an output schema, else a text.

        Its texts are those of the sink: half of a surrogate pair is U+FFFD.
        """
        return {
            key: valid_value(answer_value(outcome, has_schema=self.has_schema))
            for key, outcome in self.by_key.items()
            if isinstance(outcome, Completion)
        }


def render_rows(spec: JobSpec, rows: Mapping[str, Row]) -> dict[str, Rendered]:
    """Renders the prompts of rows; nothing is sent."""
    prompts = RowPrompts(spec)
    found = prompts.identify([*map(prompts.render, rows.values())])
    return {
        key: each.failure if isinstance(each, FailedRow) else each for key, each in zip(rows, found, strict=True)
    }


def answer_rows(
    spec: JobSpec,
    prompts: Mapping[str, Rendered],
    about: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Answers:
    """Answers rows: from the journal and the cache of the job, and by requests for the rest.

    Args:
        spec: The job.
        prompts: The prompt of each row.
        about: For verdicts, the fingerprints of the prompts that each of them is about.

    Raises:
        JobFailedError: The server left rows unanswered, perhaps temporarily; a retry sends only those.
        PermanentFailureError: It left them unanswered for a reason that a retry repeats.
    """
    wanted = {each.fingerprint: each.prompt for each in prompts.values() if isinstance(each, RowPrompt)}
    known, _ = find_outcomes(spec, wanted)
    fingerprints = {key: each.fingerprint for key, each in prompts.items() if isinstance(each, RowPrompt)}
    named: dict[str, list[str]] = {}
    for key, fingerprint in fingerprints.items():
        named.setdefault(fingerprint, []).extend(about.get(key, ()))
    fresh = send(spec, {each: prompt for each, prompt in wanted.items() if each not in known}, about=named)
    outcomes = known | fresh
    refuse_faults_of_the_server(spec, outcomes)
    by_key = {
        key: each if isinstance(each, Failure) else outcomes[each.fingerprint] for key, each in prompts.items()
    }
    return Answers(by_key, tuple(fresh.values()), fingerprints, spec.prompt.output_schema is not None)


def find_outcomes(spec: JobSpec, fingerprints: Container[str]) -> tuple[dict[str, Outcome], int]:
    """Returns the usable outcomes in the journal of a job by fingerprint, and the number of all its entries."""
    now = time.time()
    known: dict[str, Outcome] = {}
    recorded, form = 0, answer_form(spec, RunContext(started_at=now))
    for entry in journal_entries(spec, oldest_useful_at(spec, now)):
        recorded += 1
        if entry.fingerprint in fingerprints and form.accepts(entry.outcome):
            known[entry.fingerprint] = better(entry.outcome, known.get(entry.fingerprint))
    return known, recorded


def send(
    spec: JobSpec,
    prompts: Mapping[str, Prompt],
    rows: Mapping[str, Sequence[Row]] = MappingProxyType({}),
    about: Mapping[str, Sequence[str]] = MappingProxyType({}),
    *,
    make_handler: Callable[[JobSpec, RunContext], JobHandler[Request]] = JobHandler,
) -> dict[str, Outcome]:
    """Sends prompts as the job does, with its journal; returns their outcomes by fingerprint.

    Args:
        spec: The job.
        prompts: Prompts by fingerprint.
        rows: Rows of the source by fingerprint, with their key columns at least, for the audit.
        about: By the fingerprint of a prompt for a verdict, those of the prompts that it is about.
        make_handler: Makes the handler that sends them.

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
    handler = make_handler(spec.model_copy(update={"inference": inference}), context)
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


def online_latencies(outcomes: Iterable[Outcome]) -> list[float]:
    """Returns the latencies of answers, in seconds, without those of batch inference, which have none."""
    completions = (each for each in outcomes if isinstance(each, Completion))
    return [each.latency_seconds for each in completions if each.service_tier != "batch"]


def cost_usd(outcomes: Iterable[Outcome]) -> float | None:
    """Returns the cost of outcomes, in US dollars; `None` if that of one is not known."""
    costs = [outcome.cost_nano_usd for outcome in outcomes]
    return None if None in costs else sum(filter(None, costs)) / NANO


def check_generates(spec: JobSpec) -> None:
    """Refuses a job that embeds.

    Raises:
        JobSpecError: Its answers are vectors.
    """
    if spec.embedding is not None:
        raise JobSpecError(
            "`task`: vectors cannot be compared with expected answers; expected 'generate', got 'embed'."
        )


def check_models(*specs: JobSpec) -> None:
    """Opens the clients of the models of jobs, unless only the workers have their keys; sends nothing.

    Raises:
        JobSpecError: A key is missing.
    """
    for spec in specs:
        if not spec.environment_secrets:
            check_model(spec)


@contextmanager
def keep_answers(spec: JobSpec) -> Iterator[None]:
    """Reports a fault of the body, which may have paid for answers.

    Raises:
        JobFailedError: An unexpected error, such as a full disk; a retry pays for no answer again.
    """
    try:
        yield
    except LLMBeamError:
        raise
    except Exception as error:
        raise JobFailedError(
            f"Job {spec.name!r}: {type(error).__name__}: {str(error).rstrip('.')}. The answers so far are in "
            f"{spec.paths.journal_uri!r}; a retry pays for none of them again."
        ) from error


def refuse_faults_of_the_server(spec: JobSpec, outcomes: Mapping[str, Outcome]) -> None:
    """Refuses outcomes that say nothing of the model, as its server failed.

    Raises:
        JobFailedError: Some are perhaps temporary; a retry sends only those.
        PermanentFailureError: A retry would repeat all of them.
    """
    failures = [each for each in outcomes.values() if isinstance(each, Failure)]
    faults = [each for each in failures if each.kind not in _OF_THE_ROW]
    if not faults:
        return
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(each.kind for each in failures).most_common())
    is_permanent = all(each.kind in PERMANENT for each in failures)
    raise (PermanentFailureError if is_permanent else JobFailedError)(
        f"{len(failures)} of {len(outcomes)} prompts have no answer ({kinds}), so there is no score: "
        f"{faults[0].message.rstrip('.')}. The answers so far are in {spec.paths.journal_uri!r}; a retry sends "
        "only the rest."
    )
