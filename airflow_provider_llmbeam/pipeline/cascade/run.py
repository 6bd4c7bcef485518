"""Calibrates the cascade of a run before its graph, or takes the calibration of an earlier run."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any, cast

import apache_beam as beam

from airflow_provider_llmbeam.engine.outcome import OF_EVERY_PROMPT, Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.plan import prompt_tokens
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import BudgetExceededError, PermanentFailureError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.cascade.calibration import (
    Calibration,
    Costs,
    Draw,
    StageAnswer,
    calibrate,
    find_reason_against,
)
from airflow_provider_llmbeam.pipeline.cascade.choice import is_kept
from airflow_provider_llmbeam.pipeline.cascade.comparer import Comparer
from airflow_provider_llmbeam.pipeline.cascade.distilled.counts import DistilledCounts
from airflow_provider_llmbeam.pipeline.cascade.distilled.facts import Compared
from airflow_provider_llmbeam.pipeline.cascade.distilled.facts import describe as describe_distilled
from airflow_provider_llmbeam.pipeline.cascade.distilled.stage import (
    answer_block,
    hand_on,
    load_classifier,
    make_answer,
    write_fit,
)
from airflow_provider_llmbeam.pipeline.cascade.distilled.teach import Taught, Teacher
from airflow_provider_llmbeam.pipeline.cascade.report import ALL, paid_by_name, paid_counts, paid_tally
from airflow_provider_llmbeam.pipeline.cascade.sample import (
    Sample,
    SampledPrompt,
    draw_prompts,
    draws_of,
    read_sample,
)
from airflow_provider_llmbeam.pipeline.cascade.stages import (
    AnswerReader,
    sample_fingerprint,
    samples_of,
    stage_jobs,
)
from airflow_provider_llmbeam.pipeline.cascade.state import (
    ROWS_PER_DRAW,
    RunCascade,
    StoredCalibration,
    calibration_uri,
    read_calibration,
    run_of,
)
from airflow_provider_llmbeam.pipeline.cascade.transform import StageHandler
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.measure.answers import (
    check_models,
    find_outcomes,
    online_latencies,
    refuse_faults_of_the_server,
    send,
)
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally, add_up
from airflow_provider_llmbeam.pipeline.transforms.account import add_outcome
from airflow_provider_llmbeam.providers.distilled.fit import FitError
from airflow_provider_llmbeam.providers.distilled.vectors import require_sklearn
from airflow_provider_llmbeam.spec.cascade import Cascade
from airflow_provider_llmbeam.spec.distilled import DistilledStage
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.protocol.counts import NANO, usd

_log = logging.getLogger("llmbeam")

#: Assumed output tokens of an answer, before any was seen.
_OUTPUT_TOKENS = 50


@dataclass(frozen=True)
class BegunCascade:
    """What the calibration of a run has left.

    Attributes:
        run: The cascade of the run.
        tally: What was sent for the calibration, by this try or by an earlier one of the job.
    """

    run: RunCascade
    tally: Tally = field(default_factory=Tally)

    @property
    def spent_usd(self) -> float:
        """Cost of the calibration in this run, in US dollars."""
        return self.run.spent_usd

    def with_remaining_budget(self, spec: JobSpec) -> JobSpec:
        """Returns the job with what the calibration has left of its budget.

        Raises:
            BudgetExceededError: Nothing is left.
        """
        return _with_budget(spec, self.spent_usd)


def begin_cascade(spec: JobSpec, new_pipeline: Callable[[], beam.Pipeline]) -> BegunCascade:
    """Returns the cascade of a run, calibrated by this run or by an earlier one.

    Args:
        spec: The job, which has a cascade.
        new_pipeline: Makes a pipeline that reads the source.

    Raises:
        JobSpecError: The rows are refused; nothing was sent.
        JobFailedError: A server left prompts of the sample unanswered; a retry sends only these.
        BudgetExceededError: The budget is spent.
    """
    cascade = cast("Cascade", spec.cascade)
    stored = read_calibration(spec)
    if stored is not None and (reason := stored.find_reason_to_repeat(cascade.target_agreement)):
        _log.warning("Cascade: it is calibrated again: %s.", reason)
        stored = None
    if stored is None:
        begun = _calibrate(spec, cascade, new_pipeline)
    else:
        paid = stored.paid if stored.is_of_try(spec) else {}
        run = run_of(spec, cascade, stored)
        if fault := _fit_fault(stored):
            again = f"to learn it again, delete {calibration_uri(spec)!r}"
            run = RunCascade(None, f"{fault}; {again}", rows=stored.rows)
        begun = BegunCascade(run, paid_tally(paid))
    for line in describe(spec, begun.run):
        _log.info("%s", line)
    return begun


def describe(spec: JobSpec, run: RunCascade) -> Iterable[str]:
    """Yields the cascade of a run as lines of text."""
    cascade = cast("Cascade", spec.cascade)
    calibration = run.calibration
    if calibration is None or not run.asked:
        again = (
            ""
            if calibration is None
            else (
                f" It is calibrated again after {ROWS_PER_DRAW * calibration.draws:,} rows of later runs, or if "
                f"{calibration_uri(spec)!r} is deleted."
            )
        )
        yield f"Cascade: `model` answers every row: {run.reason.rstrip('.')}.{again}"
        return
    names = cascade.names(spec.model)
    for number in run.asked:
        yield (
            f"Cascade: stage {number + 1}, {names[number]}, keeps scores from "
            f"{calibration.thresholds[number]:.6g} on, {calibration.kept[number]:.1%} of the draws."
        )
    held = (
        "guaranteed for these rows" if run.is_guaranteed else "monitored, not guaranteed: it is of an earlier run"
    )
    yield (
        f"Cascade: {calibration.escalated:.1%} of the draws go to {names[-1]}; {calibration.agreement:.2%} of "
        f"{calibration.tested:,} test draws agree, at least {calibration.low:.2%} with confidence "
        f"{cascade.confidence:g} ({held})."
    )
    if calibration.not_guaranteed:
        yield (
            "Cascade: classes with too few draws, which escalate and whose agreement is not guaranteed: "
            f"{', '.join(calibration.not_guaranteed)}."
        )


def _calibrate(spec: JobSpec, cascade: Cascade, new_pipeline: Callable[[], beam.Pipeline]) -> BegunCascade:
    check_models(spec)  # this process sends the sample, wherever the workers are
    if any(isinstance(each, DistilledStage) for each in cascade.stages):
        require_sklearn()
    sample = _draw(spec, new_pipeline)
    _log.info(
        "Cascade: %s draws of %s rows, %s distinct prompts, are answered by each stage and by `model`.",
        f"{cascade.draws:,}",
        f"{sample.rows:,}",
        f"{len(sample.of_draws(cascade.draws)):,}",
    )
    if reason := _reason_against(spec, cascade, sample):
        return BegunCascade(RunCascade(None, reason, rows=sample.rows))
    answers = _Answers(spec, cascade, sample)
    answers.ask_judges()
    calibration = calibrate(
        answers.draws(),
        answers.costs(),
        target_agreement=cascade.target_agreement,
        confidence=cascade.confidence,
        class_agreement=cascade.class_agreement,
    )
    stored = StoredCalibration(
        job=spec.name,
        made_at=time.time(),
        rows=sample.rows,
        calibration=calibration,
        paid=paid_by_name(answers.tally),
        latency_seconds=answers.latencies(),
        distilled=answers.distilled(calibration),
        output_tokens=answers.output_tokens,
    )
    storage.replace(calibration_uri(spec), stored.model_dump_json(indent=1).encode())
    run = replace(run_of(spec, cascade, stored), spent_usd=answers.tally.sums["cost_nano_usd"] / NANO)
    return BegunCascade(run, answers.tally)


def _fit_fault(stored: StoredCalibration) -> str:
    """Returns why a fit of a calibration cannot be used; empty if all can."""
    for each in stored.distilled.values():
        try:
            load_classifier(each.fit_uri)
        except FitError as error:
            return str(error)
    return ""


def _draw(spec: JobSpec, new_pipeline: Callable[[], beam.Pipeline]) -> Sample:
    """Draws the sample in a graph of its own, as batch inference prepares its files."""
    uri = f"{spec.paths.staging_uri}cascade-sample.jsonl"
    pipeline = new_pipeline()
    draw_prompts(pipeline, spec, RunContext(started_at=time.time(), stop_uri=spec.paths.stop_uri), uri)
    pipeline.run().wait_until_finish()
    sample = read_sample(uri)
    storage.delete([uri])
    return sample


def _reason_against(spec: JobSpec, cascade: Cascade, sample: Sample) -> str:
    """Returns why the calibration would cost more than the cascade saves; empty if it may pay."""
    drawn = sample.of_draws(cascade.draws)
    if not drawn:
        return "no row is a prompt"
    prices = [price_of(job.model, job.limits.price) for job in (*stage_jobs(spec, cascade), spec)]
    if None in prices:
        return ""
    tokens = round(fmean(prompt_tokens(each.prompt) for each in drawn))
    *stages, model = (price.cost_usd(tokens, _OUTPUT_TOKENS) for price in prices if price is not None)
    costs = Costs(tuple(cost * samples_of(each) for cost, each in zip(stages, cascade.stages, strict=True)), model)
    return find_reason_against(costs, rows=sample.rows, sample_rows=len(drawn))


class _Answers:
    """The answers of all stages and of `model` to the sample, from the journal or by requests.

    Args:
        spec: The job.
        cascade: Its cascade.
        sample: The sample.

    Attributes:
        tally: What was sent for them.
    """

    def __init__(self, spec: JobSpec, cascade: Cascade, sample: Sample) -> None:
        self._spec, self._cascade, self._sample = spec, cascade, sample
        self._reader, self._comparer = AnswerReader(spec), Comparer(spec)
        self._names = cascade.names(spec.model)
        self.tally = Tally()
        self._rows = {each.fingerprint: each.row for each in sample.prompts}
        self._jobs = stage_jobs(spec, cascade)
        #: Outcomes of each stage by the fingerprint of `model`, one for each sample of an answer.
        self._stages: list[dict[str, list[Outcome]]] = [{} for _ in self._jobs]
        self._model: dict[str, Outcome] = {}
        drawn = sample.of_draws(cascade.draws)
        for number in range(len(self._jobs)):
            self._ask_stage(number, drawn)
        self._ask_model(drawn)
        self._drawn = draws_of(sample, cascade.draws)
        self._taught: dict[int, Taught] = {}
        #: The answers of distilled stages to the draws that choose, and to those that test.
        self._distilled: dict[int, list[dict[str, Outcome]]] = {}
        self._fit_uris: dict[int, str] = {}
        for number, stage in enumerate(cascade.stages):
            if isinstance(stage, DistilledStage):
                self._teach(number, stage)

    def ask_judges(self) -> None:
        """Asks the judges of the agreement, as far as the draws need them."""
        self.draws()
        paid = self._comparer.ask()
        paid.cascade[ALL, "sample_nano_usd"] += paid.sums["cost_nano_usd"]
        self.tally = add_up([self.tally, paid])

    def draws(self) -> list[Draw]:
        """Returns the draws, in their order."""
        halves = self._drawn[: len(self._drawn) // 2], self._drawn[len(self._drawn) // 2 :]
        return [self._draw(each, half) for half, drawn in enumerate(halves) for each in drawn]

    def distilled(self, calibration: Calibration) -> dict[int, DistilledCounts]:
        """Returns what the distilled stages have learned, by number."""
        found = {}
        for number, uri in self._fit_uris.items():
            compared = []
            for prompt in self._drawn[len(self._drawn) // 2 :]:
                answer, expected = self._outcomes(number, prompt, 1), self._model[prompt.fingerprint]
                if not answer or not isinstance(answer[0], Completion) or not isinstance(expected, Completion):
                    continue
                mine = cast("StageAnswer", self._draw(prompt, 1).stages[number])
                compared.append(
                    Compared(
                        text=prompt.prompt.text,
                        expected=self._reader.value(expected),
                        answer=self._reader.value(answer[0]),
                        labels=(self._reader.label(expected), mine.label),
                        score=mine.score,
                        agrees=mine.agrees,
                        is_kept=is_kept(calibration, number, mine),
                    )
                )
            found[number] = describe_distilled(uri, self._taught[number].curve, compared)
        return found

    def _ask_stage(self, number: int, prompts: Sequence[SampledPrompt]) -> None:
        stage, found = self._cascade.stages[number], self._stages[number]
        for again in range(samples_of(stage)):
            asked = {
                each.fingerprint: (sample_fingerprint(made[0], again), made[1])
                for each in prompts
                if (made := each.stages[number]) is not None
            }
            if isinstance(stage, DistilledStage) and stage.is_free:
                found.update({each: [hand_on(prompt.text)] for each, (_, prompt) in asked.items()})
                continue
            outcomes = self._ask(self._jobs[number], self._names[number], asked, self._rows)
            for fingerprint, outcome in outcomes.items():
                found.setdefault(fingerprint, []).append(outcome)

    def _ask_model(self, prompts: Sequence[SampledPrompt]) -> None:
        asked = {each.fingerprint: (each.fingerprint, each.prompt) for each in prompts}
        self._model |= self._ask(self._spec, self._names[-1], asked, self._rows, is_model=True)

    def _teach(self, number: int, stage: DistilledStage) -> None:
        """Teaches a distilled stage; test draws are answered by the fit that later answers the rows."""

        def ask(prompts: Sequence[SampledPrompt]) -> None:
            self._ask_stage(number, [each for each in prompts if each.fingerprint not in self._stages[number]])
            self._ask_model([each for each in prompts if each.fingerprint not in self._model])

        vectors = self._stages[number]
        taught = Teacher(self._spec, stage, self._sample, ask, vectors, self._model, self._reader.value).teach()
        self._taught[number], self._distilled[number] = taught, [{}, {}]
        if taught.fit is None:
            return
        has_schema = taught.fit.has_schema
        self._fit_uris[number] = write_fit(self._spec, taught.fit)
        classifier = load_classifier(self._fit_uris[number])
        tested = [each.fingerprint for each in self._drawn[len(self._drawn) // 2 :] if each.fingerprint in vectors]
        outcomes = answer_block(classifier, stage.embedding, [vectors[each][0] for each in tested])
        self._distilled[number] = [
            {
                fingerprint: make_answer(vectors[fingerprint][0], value, score, has_schema=has_schema)
                for fingerprint, (value, score) in taught.answers.items()
            },
            dict(zip(tested, outcomes, strict=True)),
        ]

    def _outcomes(self, number: int, prompt: SampledPrompt, half: int) -> Sequence[Outcome] | None:
        """Returns the answers of a stage to a draw of the half that chooses (0) or tests (1), or `None`."""
        if number not in self._distilled:
            return self._stages[number].get(prompt.fingerprint)
        found = self._distilled[number][half].get(prompt.fingerprint)
        return None if found is None else [found]

    def costs(self) -> Costs:
        """Returns the mean costs of a row that is asked; 0 and 1 if a price is not known."""
        stages = [_mean_cost(found.values()) for found in self._stages]
        model = _mean_cost([each] for each in self._model.values())
        if model is None or None in stages:
            return Costs(tuple(0.0 for _ in stages), 1.0)
        return Costs(tuple(cost or 0.0 for cost in stages), model)

    def latencies(self) -> tuple[float | None, ...]:
        """Returns the mean latency of each stage and of `model`, in seconds; `None` for one without answers."""
        firsts = [*([each[0] for each in found.values()] for found in self._stages), [*self._model.values()]]
        found = map(online_latencies, firsts)
        return tuple(fmean(each) if each else None for each in found)

    @property
    def output_tokens(self) -> float:
        """Mean output tokens of an answer of `model`."""
        return fmean(each.tokens.output for each in self._model.values())

    def _draw(self, prompt: SampledPrompt, half: int) -> Draw:
        expected = self._model[prompt.fingerprint]
        stages = []
        for number, stage in enumerate(self._cascade.stages):
            outcomes = self._outcomes(number, prompt, half)
            answer = None if outcomes is None else self._reader.answer(stage, outcomes)
            if answer is not None and outcomes is not None and isinstance(expected, Completion):
                value = self._reader.value(cast("Completion", outcomes[0]))
                is_equal = self._comparer.agrees(
                    prompt.fingerprint, prompt.row, value, self._reader.value(expected)
                )
                answer = type(answer)(answer.score, is_equal, answer.label)
            stages.append(answer)
        if isinstance(expected, Failure):
            return Draw(tuple(stages), is_answered=False)
        return Draw(tuple(stages), label=self._reader.label(expected))

    def _ask(
        self,
        job: JobSpec,
        name: str,
        asked: Mapping[str, tuple[str, Prompt]],
        rows: Mapping[str, Mapping[str, Any]],
        *,
        is_model: bool = False,
    ) -> dict[str, Outcome]:
        """Returns the outcomes of prompts by the fingerprint of `model`.

        Args:
            job: Who is asked.
            name: Its name.
            asked: Fingerprint and prompt by the fingerprint of `model`.
            rows: Key of a row by the same.
            is_model: Whether it is `model`, without whose answers there is nothing to compare with.
        """
        wanted = dict(asked.values())
        known, _ = find_outcomes(job, wanted)
        of_prompt = {fingerprint: [dict(rows[of_model])] for of_model, (fingerprint, _) in asked.items()}
        about: dict[str, list[str]] = {}
        for of_model, (fingerprint, _) in asked.items():
            if not is_model:
                about.setdefault(fingerprint, []).append(of_model)
        fresh = send(
            _with_budget(job, self.tally.sums["cost_nano_usd"] / NANO),
            {each: prompt for each, prompt in wanted.items() if each not in known},
            of_prompt,
            about,
            make_handler=partial(StageHandler, name=name),
        )
        for outcome in fresh.values():
            add_outcome(self.tally, outcome)
            self.tally.cascade.update(paid_counts(name, outcome))
            self.tally.cascade.update(Counter({(ALL, "sample_nano_usd"): outcome.cost_nano_usd or 0}))
        outcomes = known | fresh
        if is_model:
            refuse_faults_of_the_server(job, outcomes)
        lost = [each for each in outcomes.values() if isinstance(each, Failure) and each.kind in OF_EVERY_PROMPT]
        if lost:
            raise PermanentFailureError(
                f"`cascade`: {name!r} answers nothing: {lost[0].message.rstrip('.')}. The answers so far are in "
                "the journal; a retry pays for none of them again."
            )
        return {of_model: outcomes[fingerprint] for of_model, (fingerprint, _) in asked.items()}


def _mean_cost(found: Iterable[Sequence[Outcome]]) -> float | None:
    costs = [[each.cost_nano_usd for each in outcomes] for outcomes in found]
    if any(None in each for each in costs):
        return None
    return fmean(sum(filter(None, each)) for each in costs) / NANO if costs else 0.0


def _with_budget(spec: JobSpec, spent_usd: float) -> JobSpec:
    budget = spec.limits.budget_usd
    if budget is None or not spent_usd:
        return spec
    if spent_usd >= budget:
        raise BudgetExceededError(
            f"The calibration of the cascade has cost {usd(spent_usd)}, and `limits.budget_usd` allows "
            f"{usd(budget)}. The journal has the answers so far: another run, with a new budget, continues from "
            "there."
        )
    return spec.model_copy(update={"limits": spec.limits.model_copy(update={"budget_usd": budget - spent_usd})})
