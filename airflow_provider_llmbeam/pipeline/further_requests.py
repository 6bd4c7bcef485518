"""Further requests in the graph: one per distinct prompt whose outcome is not in the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult, RunInference

from airflow_provider_llmbeam.engine.journal.journal import better
from airflow_provider_llmbeam.engine.outcome import Failure, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.answer_form import AnswerForm, answer_form
from airflow_provider_llmbeam.pipeline.audit.record import audited_row
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, Escalation, Request, Row
from airflow_provider_llmbeam.pipeline.job_handler import JobHandler
from airflow_provider_llmbeam.pipeline.transforms.keys import refuse_duplicates
from airflow_provider_llmbeam.pipeline.transforms.reuse import read_journal

_KNOWN = "known"
#: Column of a row of a request with the element that it is made for, beside what the audit needs of its row.
_ELEMENT = "llmbeam_element"
#: Outcome of an element that makes no request.
NOT_ASKED = Failure(kind="not_sent", message="The answer of `model` is known.")


@dataclass(frozen=True, slots=True)
class Asked:
    """An element of the graph with the outcome of its further request.

    Attributes:
        element: The element.
        outcome: The outcome.
        is_first: Whether the request was made in this run, and is counted with this element.
    """

    element: Any
    outcome: Outcome
    is_first: bool


class Ask(beam.PTransform):
    """Turns `(fingerprint, (text, system, element))` into `Asked` elements.

    An element is an `AnsweredRow`, a `(fingerprint, RenderedRow)`, or an `Escalation`; one whose answer of `model`
    is known makes no request, and without an outcome in the journal has the failure `NOT_ASKED`.

    Args:
        handler: Handler of the job that sends the requests.
        gate: Delays the requests until the rows and the sink are checked.
        duplicate_keys: Duplicate keys, which fail the job before anything is sent.
        is_verdict: Whether the outcomes belong to the elements, as a verdict does: the journal then names these,
            and what is known of a row is forgotten as a whole.
    """

    def __init__(
        self,
        handler: JobHandler[Request],
        gate: Callable[[beam.PCollection], beam.PCollection] = lambda requests: requests,
        duplicate_keys: beam.pvalue.AsList | None = None,
        *,
        is_verdict: bool = False,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._gate = gate
        self._duplicate_keys = duplicate_keys
        self._is_verdict = is_verdict

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        """Looks up the outcomes in the journal, and asks for the rest."""
        spec, context = self._handler.spec, self._handler.context
        checks = () if self._duplicate_keys is None else (self._duplicate_keys,)
        looked_up = (
            {"asked": elements, "journal": read_journal(elements.pipeline, spec, context)}
            | "ByFingerprint" >> beam.CoGroupByKey()
            | "LookUp"
            >> beam.ParDo(
                _LookUp(spec.source.key, answer_form(spec, context), self._is_verdict), *checks
            ).with_outputs(_KNOWN, main="requests")
        )
        asked = (
            self._gate(looked_up["requests"])
            | "RunInference" >> RunInference(self._handler)
            | "FanOut" >> beam.FlatMap(_fan_out)
        )
        return (looked_up[_KNOWN], asked) | beam.Flatten()


class _LookUp(beam.DoFn):
    def __init__(self, key: tuple[str, ...], form: AnswerForm, is_verdict: bool) -> None:
        self._key = key
        self._form = form
        self._is_verdict = is_verdict

    def process(
        self,
        group: tuple[str, dict[str, Iterable[Any]]],
        duplicate_keys: list[bytes] = [],  # noqa: B006 - never changed
    ) -> Iterator[Request | beam.pvalue.TaggedOutput]:
        refuse_duplicates(duplicate_keys)
        fingerprint, found = group
        asked = list(found["asked"])
        outcomes: list[Outcome] = [each for _, each in found["journal"] if self._form.accepts(each)]
        if outcomes:
            outcome = reduce(lambda earlier, later: better(later, earlier), outcomes)
            for *_, element in asked:
                yield beam.pvalue.TaggedOutput(_KNOWN, Asked(element, outcome, is_first=False))
        elif all(is_settled(element) for *_, element in asked):
            for *_, element in asked:
                yield beam.pvalue.TaggedOutput(_KNOWN, Asked(element, NOT_ASKED, is_first=False))
        elif asked:
            text, system, _ = asked[0]
            # The request is counted with the element whose first request is.
            elements = sorted((element for *_, element in asked), key=_is_duplicate)
            rows = tuple(row for each in elements for row in self._rows(each))
            about = tuple(dict.fromkeys(map(_fingerprint_of, elements))) if self._is_verdict else ()
            yield Request(fingerprint, rows, Prompt(text, system), about)

    def _rows(self, element: Any) -> Iterator[Row]:
        """Yields what the audit needs of the rows of an element; the first one has the element."""
        carried: Row = {_ELEMENT: element}
        for row in _rows_of(element):
            yield {**audited_row(row, self._key), **carried}
            carried = {}


def is_settled(element: Any) -> bool:
    """Returns whether the answer of `model` is known to an element."""
    return isinstance(element, Escalation) and element.known is not None


def _is_duplicate(element: Any) -> bool:
    return isinstance(element, AnsweredRow) and element.origin == "duplicate"


def _rows_of(element: Any) -> tuple[Row, ...]:
    match element:
        case AnsweredRow():
            return (element.row,)
        case Escalation():
            return element.request.rows
    row: Row = element[1][0]
    return (row,)


def _fingerprint_of(element: Any) -> str:
    if isinstance(element, Escalation):
        element = element.request
    fingerprint: str = element.fingerprint if isinstance(element, AnsweredRow | Request) else element[0]
    return fingerprint


def _fan_out(result: PredictionResult) -> Iterator[Asked]:
    elements = [row[_ELEMENT] for row in result.example.rows if _ELEMENT in row]
    for number, element in enumerate(elements):
        yield Asked(element, result.inference, is_first=not number)
