"""The answers of a job to some rows: those in its journal, and those of new requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from airflow_provider_llmbeam.engine.outcome import PERMANENT, REFUSED, Completion, Failure, Outcome
from airflow_provider_llmbeam.exceptions import JobFailedError, LLMBeamError, PermanentFailureError
from airflow_provider_llmbeam.pipeline.elements import FailedRow, RowPrompt
from airflow_provider_llmbeam.pipeline.measure.estimate.outcomes import earlier_outcomes, send
from airflow_provider_llmbeam.pipeline.measure.evaluation.rows import KeyedRows
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts
from airflow_provider_llmbeam.pipeline.records import answer_value
from airflow_provider_llmbeam.spec.characters import valid_value
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from airflow_provider_llmbeam.spec.job import JobSpec
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

    by_key: Mapping[str, Outcome]
    sent: tuple[Outcome, ...]
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    has_schema: bool = False

    @property
    def cost_usd(self) -> float | None:
        """Cost of the requests that were sent now, in US dollars; `None` if no price is known."""
        return _cost_usd(self.sent)

    @property
    def usd_per_thousand_rows(self) -> float | None:
        """Cost of a thousand such rows without duplicates, at the tier they were served at; `None` as above."""
        cost = _cost_usd(self.by_key.values())
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


def rendered(spec: JobSpec, rows: KeyedRows) -> dict[str, Rendered]:
    """Renders the prompts of rows; nothing is sent."""
    prompts = RowPrompts(spec)
    found = prompts.identify([*map(prompts.render, rows.values())])
    return {
        key: each.failure if isinstance(each, FailedRow) else each for key, each in zip(rows, found, strict=True)
    }


def answered(
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
    known, _ = earlier_outcomes(spec, wanted)
    fingerprints = {key: each.fingerprint for key, each in prompts.items() if isinstance(each, RowPrompt)}
    named: dict[str, list[str]] = {}
    for key, fingerprint in fingerprints.items():
        named.setdefault(fingerprint, []).extend(about.get(key, ()))
    fresh = send(spec, {each: prompt for each, prompt in wanted.items() if each not in known}, about=named)
    outcomes = known | fresh
    _refuse_faults_of_the_server(spec, outcomes)
    by_key = {
        key: each if isinstance(each, Failure) else outcomes[each.fingerprint] for key, each in prompts.items()
    }
    return Answers(by_key, tuple(fresh.values()), fingerprints, spec.prompt.output_schema is not None)


@contextmanager
def answers_are_kept(spec: JobSpec) -> Iterator[None]:
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


def _refuse_faults_of_the_server(spec: JobSpec, outcomes: Mapping[str, Outcome]) -> None:
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


def _cost_usd(outcomes: Iterable[Outcome]) -> float | None:
    costs = [outcome.cost_nano_usd for outcome in outcomes]
    return None if None in costs else sum(filter(None, costs)) / NANO
