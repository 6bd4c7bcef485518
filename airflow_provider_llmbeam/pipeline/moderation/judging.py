"""The requests to a guard in the graph: one per distinct text whose verdict is not in the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult, RunInference

from airflow_provider_llmbeam.engine.journal.journal import better
from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.answer_form import AnswerForm
from airflow_provider_llmbeam.pipeline.audit.record import audited_row
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, Request, Row
from airflow_provider_llmbeam.pipeline.moderation.guard import GuardHandler
from airflow_provider_llmbeam.pipeline.transforms.keys import refuse_duplicates
from airflow_provider_llmbeam.pipeline.transforms.reuse import answer_form, read_journal
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter
from airflow_provider_llmbeam.spec.safety.moderation import PLACE, Moderation

_KNOWN = "known"
#: Column of a row of the guard's job, which holds the element that is judged, beside the key of its row.
_ELEMENT = "llmbeam_element"


@dataclass(frozen=True, slots=True)
class Judged:
    """An element of the graph with what the guard said of its text.

    Attributes:
        element: The element.
        outcome: Outcome of the guard's request.
        is_first: Whether the request was made in this run, and is counted with this element.
    """

    element: Any
    outcome: Outcome
    is_first: bool


class AskGuard(beam.PTransform):
    """Turns `(text, element)` into `Judged` elements.

    Args:
        guard: The guard's job, see `guard_job`.
        moderation: The moderation.
        handler: Handler of the guard, the same for both sides, which then share its budget.
        oldest_at: Unix time; older verdicts are asked for again.
        started_at: Unix time of the launch.
        gate: Delays the requests until the rows and the sink are checked.
        duplicate_keys: Duplicate keys, which fail the job before anything is sent.
    """

    def __init__(
        self,
        guard: JobSpec,
        moderation: Moderation,
        handler: GuardHandler,
        oldest_at: float,
        started_at: float,
        gate: Callable[[beam.PCollection], beam.PCollection] = lambda requests: requests,
        duplicate_keys: beam.pvalue.AsList | None = None,
    ) -> None:
        super().__init__()
        self._guard = guard
        self._moderation = moderation
        self._handler = handler
        self._oldest_at = oldest_at
        self._started_at = started_at
        self._gate = gate
        self._duplicate_keys = duplicate_keys

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        """Looks up the verdicts of the texts, and asks for the rest."""
        checks = () if self._duplicate_keys is None else (self._duplicate_keys,)
        looked_up = (
            {
                "texts": elements | "Fingerprint" >> beam.ParDo(_Fingerprint(self._guard)),
                "journal": read_journal(elements.pipeline, self._guard, self._oldest_at),
            }
            | "ByText" >> beam.CoGroupByKey()
            | "LookUp"
            >> beam.ParDo(
                _LookUp(self._guard, self._moderation, answer_form(self._guard, self._started_at)), *checks
            ).with_outputs(_KNOWN, main="requests")
        )
        asked = (
            self._gate(looked_up["requests"])
            | "RunInference" >> RunInference(self._handler)
            | "FanOut" >> beam.FlatMap(_judged)
        )
        return (looked_up[_KNOWN], asked) | beam.Flatten()


class _Fingerprint(beam.DoFn):
    def __init__(self, guard: JobSpec) -> None:
        self._guard = guard

    def setup(self) -> None:
        guard, moderation = self._guard, self._guard.safety.moderation
        assert moderation is not None
        fingerprint = Fingerprinter(guard.model, guard.generation, guard.prompt.output_schema)
        self._fingerprint = partial(fingerprint, system=moderation.system)
        self._template = moderation.template

    def process(self, element: tuple[str, Any]) -> Iterator[tuple[str, tuple[str, Any]]]:
        text, judged = element
        yield self._fingerprint(self._template.replace(PLACE, text)), (text, judged)


class _LookUp(beam.DoFn):
    def __init__(self, guard: JobSpec, moderation: Moderation, form: AnswerForm) -> None:
        self._key = guard.source.key
        self._moderation = moderation
        self._form = form

    def process(
        self,
        group: tuple[str, dict[str, Iterable[Any]]],
        duplicate_keys: list[bytes] = [],  # noqa: B006 - never changed
    ) -> Iterator[Request | beam.pvalue.TaggedOutput]:
        refuse_duplicates(duplicate_keys)
        fingerprint, found = group
        texts = list(found["texts"])
        outcomes: list[Outcome] = [each for _, each in found["journal"] if self._form.accepts(each)]
        if outcomes:
            verdict = reduce(lambda earlier, later: better(later, earlier), outcomes)
            for _, element in texts:
                yield beam.pvalue.TaggedOutput(_KNOWN, Judged(element, verdict, is_first=False))
        elif texts:
            question = self._moderation.template.replace(PLACE, texts[0][0])
            rows = tuple({**self._audited(element), _ELEMENT: element} for _, element in texts)
            yield Request(fingerprint, rows, Prompt(question, self._moderation.system))

    def _audited(self, element: Any) -> Row:
        """Returns what the audit needs of the row of an `AnsweredRow` or of a `(fingerprint, RenderedRow)`."""
        return audited_row(element.row if isinstance(element, AnsweredRow) else element[1][0], self._key)


def _judged(result: PredictionResult) -> Iterator[Judged]:
    for number, row in enumerate(result.example.rows):
        yield Judged(row[_ELEMENT], result.inference, is_first=not number)
