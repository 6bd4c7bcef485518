"""The stages of a cascade in the graph: each is asked what those before it do not keep, and `model` the rest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult
from apache_beam.transforms.window import GlobalWindows

from airflow_provider_llmbeam.engine.outcome import OF_EVERY_PROMPT, Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.value import value
from airflow_provider_llmbeam.exceptions import PermanentFailureError
from airflow_provider_llmbeam.pipeline.answer_form import answer_form
from airflow_provider_llmbeam.pipeline.audit.trail import AuditTrail
from airflow_provider_llmbeam.pipeline.cascade.choice import is_kept
from airflow_provider_llmbeam.pipeline.cascade.distilled.stage import AnswerVectors, hand_on
from airflow_provider_llmbeam.pipeline.cascade.report import paid_counts
from airflow_provider_llmbeam.pipeline.cascade.stages import (
    AnswerReader,
    StagePrompts,
    merge_samples,
    sample_fingerprint,
    samples_of,
    stage_jobs,
)
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.elements import (
    FAILED,
    AnsweredRow,
    AuditedAnswer,
    Escalation,
    Origin,
    Request,
    Row,
)
from airflow_provider_llmbeam.pipeline.feature import Prompts
from airflow_provider_llmbeam.pipeline.further_requests import NOT_ASKED, Ask, Asked
from airflow_provider_llmbeam.pipeline.job_handler import JobHandler
from airflow_provider_llmbeam.pipeline.records import encode_key
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.pipeline.transforms.account import add_outcome
from airflow_provider_llmbeam.pipeline.transforms.reuse import REUSED, MakeRequest, Reuse, read_journal
from airflow_provider_llmbeam.spec.cascade import AnyStage, Cascade
from airflow_provider_llmbeam.spec.distilled import DistilledStage
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import Counts

if TYPE_CHECKING:
    from airflow_provider_llmbeam.pipeline.cascade.calibration import Calibration
    from airflow_provider_llmbeam.pipeline.cascade.state import RunCascade

KEPT, ESCALATED, UNASKED, TALLIES, PAIRS = "kept", "escalated", "unasked", "tallies", "pairs"


@dataclass(frozen=True)
class Results:
    """What the stages leave.

    Attributes:
        requests: `Request`s to `model`.
        answered: `AnsweredRow`s: of a stage, or of `model` in the journal.
        failed: `FailedRow`s of the journal.
        tallies: `Tally`s.
        audited: `AuditedPair`s of answers of `model` in the journal.
    """

    requests: beam.PCollection
    answered: list[beam.PCollection]
    failed: list[beam.PCollection]
    tallies: list[beam.PCollection]
    audited: beam.PCollection


def ask_stages(root: beam.Pipeline, prompts: Prompts, spec: JobSpec, context: RunContext) -> Results:
    """Answers prompts by the stages of a calibrated cascade, and leaves the rest to `model`.

    Answers of `model` in the journal are final, and what a stage has said of their prompts is only looked up, for
    the audit.

    Args:
        root: The pipeline.
        prompts: The prompts.
        spec: The job.
        context: Its run.
    """
    cascade = cast("Cascade", spec.cascade)
    guard = () if prompts.duplicate_keys is None else (prompts.duplicate_keys,)
    found = (
        {"rows": prompts.rendered, "journal": read_journal(root, spec, context)}
        | "ByFingerprint" >> beam.CoGroupByKey()
        | "FindKnown" >> beam.ParDo(_FindKnown(spec, context), *guard).with_outputs(REUSED, FAILED, main="open")
    )
    escalations = found["open"]
    answered, tallies = [found[REUSED]], []
    jobs, run = stage_jobs(spec, cascade), cast("RunCascade", context.cascade)
    for number in run.asked:
        job = jobs[number]
        asked: Any = escalations | f"Stage{number}" >> _AskStage(spec, job, number, context, prompts)
        answered.append(asked[KEPT])
        tallies.append(asked[TALLIES])
        escalations = asked[ESCALATED]
    finished = escalations | "Finish" >> beam.ParDo(_Finish(spec, context)).with_outputs(
        REUSED, PAIRS, main="requests"
    )
    return Results(
        finished["requests"],
        [*answered, finished[REUSED]],
        [found[FAILED]],
        tallies,
        finished[PAIRS],
    )


class _AskStage(beam.PTransform):
    """Asks one stage; outputs `escalated`, which are `Escalation`s, `kept` and `tallies`.

    What is not asked goes through the same steps: the local runner holds all rows of a `Flatten`, 0.6 KB for each.
    """

    def __init__(self, spec: JobSpec, job: JobSpec, number: int, context: RunContext, prompts: Prompts) -> None:
        super().__init__()
        self._spec, self._job, self._number, self._context, self._prompts = spec, job, number, context, prompts

    def expand(self, escalations: beam.PCollection) -> Any:
        """Asks for each sample of an answer, one after the other, and decides."""
        cascade, run = cast("Cascade", self._spec.cascade), cast("RunCascade", self._context.cascade)
        stage = cascade.stages[self._number]
        if isinstance(stage, DistilledStage) and stage.is_free:
            escalations = escalations | "HandOn" >> beam.ParDo(_HandOn(self._spec, self._number))
        else:
            escalations = self._ask(escalations, stage)
        if isinstance(stage, DistilledStage):
            escalations = escalations | AnswerVectors(stage, run.distilled[self._number].fit_uri)
        return escalations | "Decide" >> beam.ParDo(_Decide(self._spec, self._number, self._context)).with_outputs(
            KEPT, TALLIES, main=ESCALATED
        )

    def _ask(self, escalations: beam.PCollection, stage: AnyStage) -> beam.PCollection:
        name = cast("Cascade", self._spec.cascade).names(self._spec.model)[self._number]
        handler = StageHandler(self._job, stage_context(self._context, self._number), name)
        for sample in range(samples_of(stage)):
            questions = escalations | f"Question{sample}" >> beam.ParDo(
                _MakeQuestions(self._spec, self._number, sample)
            ).with_outputs(UNASKED, main="questions")
            answers = questions["questions"] | f"Ask{sample}" >> Ask(
                handler, self._prompts.delay, self._prompts.duplicate_keys, is_verdict=True
            )
            collected = answers | f"Collect{sample}" >> beam.Map(_collect)
            escalations = (collected, questions[UNASKED]) | f"All{sample}" >> beam.Flatten()
        return escalations


def stage_context(context: RunContext, number: int) -> RunContext:
    """Returns the run of a stage: with the budget of the job, and prompts that the provider has not stored."""
    return replace(
        context,
        run=f"{context.run}-stage{number}",
        budget_run=context.budget_run or context.run,
        cached_head=None,
        batch_since=None,
        cascade=None,
    )


class StageHandler(JobHandler[Request]):
    """Handler of the requests of a stage, whose cost is among the counts of the job, and whose answers are not.

    Args:
        spec: The job of the stage.
        context: Its run.
        name: Name of the stage, for the audit.
    """

    def __init__(self, spec: JobSpec, context: RunContext, name: str) -> None:
        super().__init__(spec, context)
        self.audit = with_stage(self.audit, name)

    def count(self, counts: Counts) -> None:
        """Counts requests and their cost: a row is answered once its answer is kept."""
        super().count(replace(counts, answered=0, failed=0))


def with_stage(trail: AuditTrail | None, name: str) -> AuditTrail | None:
    """Returns a trail whose records name a stage."""
    return None if trail is None else replace(trail, requester={**trail.requester, "stage": name})


def is_of_audit(row: Row, key: tuple[str, ...], ratio: float) -> bool:
    """Returns whether a row is of the audit sample: a function of its key alone."""
    digest = hashlib.sha256(b"cascade\n" + encode_key(row, key)).digest()
    return int.from_bytes(digest[:7]) < ratio * 2**56


@beam.typehints.with_output_types(Escalation)
class _FindKnown(Reuse):
    """Makes an `Escalation` of each prompt without a final answer, and of those with one that are audited."""

    def __init__(self, spec: JobSpec, context: RunContext) -> None:
        super().__init__(spec.name, answer_form(spec, context), context)
        self._key = spec.source.key

    def process(self, group: tuple[str, Any], duplicate_keys: list[bytes] = []) -> Iterator[Any]:  # noqa: B006 - never changed
        """Processes one fingerprint."""
        fingerprint, found = group
        rows, journal = list(found["rows"]), list(found["journal"])
        if not rows:  # an answer to another job, or a vector of a stage
            return
        known = self._earlier.of(fingerprint, journal)
        ratio = 0.0 if self._context.cascade is None else self._context.cascade.audit_ratio
        if known is not None and not (
            isinstance(known[0], Completion) and any(is_of_audit(row, self._key, ratio) for row, *_ in rows)
        ):
            yield from super().process((fingerprint, {"rows": rows, "journal": journal}), duplicate_keys)
            return
        error = self._earlier.batch_error(journal)
        for request in MakeRequest.process(self, (fingerprint, rows), duplicate_keys):
            yield Escalation(replace(request, batch_error=error), cast("Any", known))


class _StagePrompt(beam.DoFn):
    """Makes the prompts of a stage."""

    def __init__(self, spec: JobSpec, number: int) -> None:
        super().__init__()
        self._spec, self._number = spec, number

    def setup(self) -> None:
        """Compiles the templates, once per worker."""
        cascade = cast("Cascade", self._spec.cascade)
        self._prompts = StagePrompts(stage_jobs(self._spec, cascade)[self._number], cascade.stages[self._number])

    def _prompt_of(self, request: Request) -> tuple[str, Prompt] | None:
        """Returns fingerprint and prompt; `None` without one, or if an earlier stage has settled the answer."""
        return None if request.audited is not None else self._prompts.of(request.rows[0], request.prompt)


class _MakeQuestions(_StagePrompt):
    """Turns an `Escalation` into what `Ask` takes for one sample of the answer of a stage, or it is `unasked`."""

    def __init__(self, spec: JobSpec, number: int, sample: int) -> None:
        super().__init__(spec, number)
        self._sample = sample

    def process(self, escalation: Escalation) -> Iterator[Any]:
        """Makes one question."""
        if (made := self._prompt_of(escalation.request)) is None:
            yield beam.pvalue.TaggedOutput(UNASKED, replace(escalation, samples=((NOT_ASKED, False),)))
            return
        fingerprint, prompt = made
        yield sample_fingerprint(fingerprint, self._sample), (prompt.text, prompt.system, escalation)


class _HandOn(_StagePrompt):
    """Hands the texts on as answers, where no server is asked."""

    def process(self, escalation: Escalation) -> Iterator[Escalation]:
        """Hands one text on."""
        made = self._prompt_of(escalation.request)
        answer = (NOT_ASKED, False) if made is None else (hand_on(made[1].text), True)
        yield replace(escalation, samples=(answer,))


def _collect(asked: Asked) -> Escalation:
    escalation = cast("Escalation", asked.element)
    return replace(escalation, samples=(*escalation.samples, (asked.outcome, asked.is_first)))


class _Decide(CountingDoFn):
    """Decides which rows keep the answer of a stage: outputs `AnsweredRow`s as `kept`, and `Escalation`s.

    Among these are those with an answer that rows would keep, but for the audit: no later stage is asked.
    """

    def __init__(self, spec: JobSpec, number: int, context: RunContext) -> None:
        super().__init__(context)
        self._spec, self._number = spec, number
        cascade = cast("Cascade", spec.cascade)
        self._stage = cascade.stages[number]
        self._name = cascade.names(spec.model)[number]
        self._run = cast("RunCascade", context.cascade)

    def setup(self) -> None:
        """Makes what reads answers, once per worker."""
        self._reader = AnswerReader(self._spec)

    def start_bundle(self) -> None:
        """Resets the sums."""
        super().start_bundle()
        self._tally = Tally()

    def finish_bundle(self) -> Iterator[beam.pvalue.TaggedOutput]:
        """Emits the sums."""
        super().finish_bundle()
        yield beam.pvalue.TaggedOutput(TALLIES, GlobalWindows.windowed_value(self._tally))

    def process(self, escalation: Escalation) -> Iterator[Any]:
        """Decides on the rows of one request.

        Raises:
            PermanentFailureError: The server of the stage answers nobody.
        """
        request, samples = escalation.request, escalation.samples
        outcome, is_first = merge_samples(samples)
        escalation = replace(escalation, samples=())
        if isinstance(outcome, Failure) and outcome.kind == "not_sent":
            yield escalation
            return
        if isinstance(outcome, Failure) and outcome.kind in OF_EVERY_PROMPT:
            raise PermanentFailureError(
                f"Stage {self._name!r} of the cascade answers nothing: {outcome.message.rstrip('.')}. Its rows "
                "were not sent to `model`, as all of them would be. Correct the stage; a retry pays for no answer "
                "again."
            )
        self._count(request, outcome, is_first)
        answer = self._reader.answer(self._stage, [each for each, _ in samples])
        calibration = cast("Calibration", self._run.calibration)
        keeps = is_kept(calibration, self._number, answer)
        is_open = is_first or escalation.known is not None or not self._run.is_repeated
        key, ratio = self._spec.source.key, self._run.audit_ratio
        is_audited = is_open and any(is_of_audit(row, key, ratio) for row in request.rows)
        if keeps:
            self._tally.cascade[self._name, "audited" if is_audited else "kept"] += len(request.rows)
        if keeps and not is_audited:
            yield from self._keep(request, cast("Completion", outcome), is_first)
            return
        if is_first:
            add_outcome(self._tally, outcome)
        if keeps:
            value = self._reader.value(cast("Completion", outcome))
            escalation = replace(escalation, request=replace(request, audited=AuditedAnswer(self._name, value)))
        yield escalation

    def _keep(self, request: Request, answer: Completion, is_first: bool) -> Iterator[beam.pvalue.TaggedOutput]:
        origin: Origin = ("repaired" if answer.repairs else "fresh") if is_first else "resumed"
        self.count("answered" if is_first else "resumed", 1 if is_first else len(request.rows))
        for number, row in enumerate(request.rows):
            of_row: Origin = "duplicate" if number and is_first else origin
            kept = AnsweredRow(row, request.fingerprint, answer, of_row, answered_by=self._name)
            yield beam.pvalue.TaggedOutput(KEPT, kept)

    def _count(self, request: Request, outcome: Outcome, is_first: bool) -> None:
        counts = self._tally.cascade
        counts[self._name, "rows"] += len(request.rows)
        counts[self._name, "failed"] += len(request.rows) if isinstance(outcome, Failure) else 0
        if is_first:
            counts.update(paid_counts(self._name, outcome))


@beam.typehints.with_output_types(Request)
class _Finish(CountingDoFn):
    """Makes the requests to `model`; rows whose answer of `model` is known are output as `reused`."""

    def __init__(self, spec: JobSpec, context: RunContext) -> None:
        super().__init__(context)
        self._pairs = PairAudited(spec, context)

    def process(self, escalation: Escalation) -> Iterator[Any]:
        """Finishes one request."""
        request, known = escalation.request, escalation.known
        if known is None:
            yield request
            return
        answer, origin = known
        for pair in self._pairs.pair(request, answer):
            yield beam.pvalue.TaggedOutput(PAIRS, pair)
        self.count("resumed", len(request.rows))
        for row in request.rows:
            yield beam.pvalue.TaggedOutput(REUSED, AnsweredRow(row, request.fingerprint, answer, origin))


@value()
class AuditedPair:
    """An answer of a stage to audited rows, and that of `model`.

    Attributes:
        rows: Number of the rows.
        row: One of them.
        fingerprint: Fingerprint of their prompt.
        answer: Answer of the stage.
        outcome: Outcome of `model`.
    """

    rows: int
    row: Row
    fingerprint: str
    answer: Any
    outcome: Outcome


class PairAudited(beam.DoFn):
    """Makes an `AuditedPair` of each prediction for audited rows."""

    def __init__(self, spec: JobSpec, context: RunContext) -> None:
        super().__init__()
        self._key = spec.source.key
        self._ratio = 0.0 if context.cascade is None else context.cascade.audit_ratio

    def process(self, result: PredictionResult) -> Iterator[AuditedPair]:
        """Makes one pair, if its rows are audited."""
        yield from self.pair(result.example, result.inference)

    def pair(self, request: Request, outcome: Outcome) -> Iterator[AuditedPair]:
        """Makes the pair of a request to `model`, if its rows are audited."""
        if request.audited is not None:
            rows = sum(is_of_audit(row, self._key, self._ratio) for row in request.rows)
            yield AuditedPair(rows, request.rows[0], request.fingerprint, request.audited.value, outcome)
