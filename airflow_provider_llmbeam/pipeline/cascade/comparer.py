"""Whether answers of stages agree with those of `model`; judges are asked side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import apache_beam as beam

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.pipeline.cascade.agreement import agrees, find_judged_parts
from airflow_provider_llmbeam.pipeline.cascade.report import ALL, JUDGE, paid_counts
from airflow_provider_llmbeam.pipeline.cascade.stages import AnswerReader
from airflow_provider_llmbeam.pipeline.cascade.transform import AuditedPair
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.measure.answers import answer_rows, render_rows
from airflow_provider_llmbeam.pipeline.measure.judge import grading_job
from airflow_provider_llmbeam.pipeline.records import encode_record
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.pipeline.transforms.account import add_outcome
from airflow_provider_llmbeam.spec.cascade import Cascade, JudgeAgreement
from airflow_provider_llmbeam.spec.job import JobSpec


class Comparer:
    """Compares answers. What a judge has to say disagrees until `ask` has asked it.

    Args:
        spec: The job.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._agreement = cast("Cascade", spec.cascade).agreement
        #: Questions without a verdict: the judge, the row with both answers, and the prompt they are about.
        self._questions: dict[str, tuple[JudgeAgreement, Row, str]] = {}
        self._verdicts: dict[str, bool] = {}

    def agrees(self, fingerprint: str, row: Mapping[str, Any], answer: Any, expected: Any) -> bool:
        """Returns whether an answer of a stage agrees with that of `model`.

        Args:
            fingerprint: Fingerprint of the prompt for `model`.
            row: A row of the prompt, for the rubric of a judge.
            answer: Answer of the stage: a parsed value with an output schema, else a text.
            expected: Answer of `model`, likewise.
        """
        if not agrees(self._agreement, answer, expected):
            return False
        verdicts = []
        for number, (judge, one, other) in enumerate(find_judged_parts(self._agreement, answer, expected)):
            key = f"{fingerprint} {number} {encode_record({'answer': one, 'expected': other}).decode()}"
            if key not in self._verdicts:
                self._questions[key] = (judge, {**row, "answer": one, "expected": other}, fingerprint)
            verdicts.append(self._verdicts.get(key, False))
        return all(verdicts)

    def ask(self) -> Tally:
        """Asks the judges what they have not been asked yet; what one leaves without a verdict disagrees.

        Returns:
            What was paid for.

        Raises:
            JobFailedError: A judge does not answer; a retry asks only for the rest.
        """
        questions, tally = self._questions, Tally()
        self._questions = {}
        for judge in cast("Cascade", self._spec.cascade).judges:
            mine = {key: (row, about) for key, (each, row, about) in questions.items() if each is judge}
            if not mine:
                continue
            job = grading_job(self._spec, judge)
            prompts = render_rows(job, {key: row for key, (row, _) in mine.items()})
            answers = answer_rows(job, prompts, {key: [about] for key, (_, about) in mine.items()})
            grades = answers.values()
            for key in mine:
                self._verdicts[key] = key in grades and (grades[key]["grade"] - 1) / 4 >= judge.minimum
            for outcome in answers.sent:
                add_outcome(tally, outcome)
                tally.cascade.update(paid_counts(JUDGE, outcome))
        return tally


class CompareAudited(beam.PTransform):
    """Compares the answers of `model` to audited rows with those that they would have kept; outputs `Tally`s.

    All of them at once, as judges are asked side by side.

    Args:
        spec: The job.
    """

    def __init__(self, spec: JobSpec) -> None:
        super().__init__()
        self._spec = spec

    def expand(self, pairs: beam.PCollection) -> beam.PCollection:
        """Compares `AuditedPair`s."""
        return (
            pairs
            | "Together" >> beam.Map(lambda pair: (None, pair))
            | beam.GroupByKey()
            | beam.ParDo(_Compare(self._spec))
        )


class _Compare(beam.DoFn):
    def __init__(self, spec: JobSpec) -> None:
        super().__init__()
        self._spec = spec

    def process(self, group: tuple[None, Iterable[AuditedPair]]) -> Iterator[Tally]:
        """Compares all pairs."""
        comparer, reader, found = Comparer(self._spec), AnswerReader(self._spec), [*group[1]]

        def is_equal(pair: AuditedPair) -> bool:
            if isinstance(pair.outcome, Failure):
                return False
            return comparer.agrees(pair.fingerprint, pair.row, pair.answer, reader.value(pair.outcome))

        for pair in found:
            is_equal(pair)
        yield comparer.ask()
        rows = sum(pair.rows for pair in found)
        disagreements = sum(pair.rows for pair in found if not is_equal(pair))
        yield Tally(cascade=Counter({(ALL, "audited"): rows, (ALL, "disagreements"): disagreements}))
