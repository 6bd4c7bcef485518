"""The guard model in an estimate: it judges the sample, and its requests for all texts are projected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Self

from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.plan import prompt_tokens
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.measure.answers import find_outcomes, send
from airflow_provider_llmbeam.pipeline.measure.estimate.estimate import GuardEstimate, GuardSide
from airflow_provider_llmbeam.pipeline.measure.estimate.projection import (
    input_share,
    mean_rates,
    project,
)
from airflow_provider_llmbeam.pipeline.measure.estimate.source_sample import SourceSample
from airflow_provider_llmbeam.pipeline.moderation.guard import Questions, guard_job
from airflow_provider_llmbeam.pipeline.moderation.verdict import decide, refusal, usage_of
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.safety.moderation import Moderation, Side

#: Rows of the source by the fingerprint of their prompt, see `send`.
_Rows = Mapping[str, Sequence[Row]]


class GuardSample:
    """The guard of a job in its estimate. Its verdicts are in the journal: the job does not ask for them again.

    Args:
        spec: The job.
        moderation: Its moderation.
        found: The prompts of its source.
        sends: Whether texts of the sample are judged now.
    """

    def __init__(self, spec: JobSpec, moderation: Moderation, found: SourceSample, *, sends: bool) -> None:
        self._spec = spec
        self._moderation = moderation
        self._guard = guard_job(spec, moderation)
        self._questions = Questions(self._guard, moderation)
        self._found = found
        self._sends = sends
        self._judged: dict[Side, dict[str, Outcome]] = {"input": {}, "output": {}}
        #: Estimated input tokens of the questions whose verdicts are known, by their fingerprint.
        self._tokens: dict[str, int] = {}
        self._sent: set[str] = set()
        self._usage: Counter[tuple[str, str, str]] = Counter()

    @classmethod
    def of(cls, spec: JobSpec, found: SourceSample, *, sends: bool) -> Self | None:
        """Returns the guard of a job; `None` for a job without one."""
        moderation = spec.safety.moderation
        return None if moderation is None else cls(spec, moderation, found, sends=sends)

    def blocked(self, prompts: Mapping[str, Prompt], rows: _Rows) -> dict[str, Failure]:
        """Judges prompts of the sample; returns why some of them are not sent, by fingerprint."""
        verdicts = self._ask("input", {each: prompt.text for each, prompt in prompts.items()}, rows)
        decisions = {each: decide(outcome, self._moderation) for each, outcome in verdicts.items()}
        return {
            each: refusal(decision, self._moderation, "prompt")
            for each, decision in decisions.items()
            if decision.action in ("fail", "replace")
        }

    def leave_out_blocked(self) -> None:
        """Leaves out the prompts that are known to be blocked, those of the sample among them."""
        questions = self._found.questions
        known, _ = find_outcomes(self._guard, dict(questions.values()))
        for fingerprint, (question, _) in questions.items():
            action = decide(known[question], self._moderation).action if question in known else "allow"
            if action in ("fail", "replace"):
                self._found.leave_out(fingerprint, is_failed=action == "fail")

    def judge_answers(self, outcomes: Mapping[str, Outcome], rows: _Rows) -> None:
        """Judges the answers of the sample."""
        answers = {each: outcome.text for each, outcome in outcomes.items() if isinstance(outcome, Completion)}
        self._ask("output", answers, rows)

    def estimate(
        self, answered: Sequence[Outcome], sample: Sequence[Outcome], known_scale: float, remaining: float
    ) -> GuardEstimate:
        """Returns the estimate of the guard.

        Args:
            answered: Outcomes of the job's prompts that are known, those of the sample among them.
            sample: Outcomes of the sample.
            known_scale: Number of outcomes in the journal that each known one represents.
            remaining: Number of prompts that the job will send.
        """
        moderation = self._moderation
        sides: dict[Side, GuardSide] = {}
        if "input" in moderation.on:
            sides["input"] = self._project("input", *self._about_prompts(known_scale))
        if "output" in moderation.on:
            about = self._about_answers(answered, sample, known_scale, remaining)
            sides["output"] = self._project("output", *about)
        tokens = [outcome.tokens for side in self._judged.values() for outcome in side.values()]
        price = price_of(moderation.model, moderation.limits.price)
        read = sum(each.input_tokens for each in sides.values())
        said = sum(each.output_tokens for each in sides.values())
        cached = read * input_share(tokens, "cached")
        cost = None if price is None else round(mean_rates(price, tokens).cost_usd(read, said, cached), 6)
        budget = moderation.limits.budget_usd
        return GuardEstimate(
            model=f"{moderation.model.type}:{moderation.model.name}",
            input=sides.get("input"),
            output=sides.get("output"),
            cost_usd=cost,
            exceeds_budget=cost is not None and budget is not None and cost > budget,
            output_is_upper_bound=not tokens,
            sample={".".join(names): number for names, number in self._usage.items() if number},
        )

    def _about_prompts(self, known_scale: float) -> tuple[float, float]:
        """Returns the number of questions about prompts, and their estimated tokens."""
        tokens, scale = dict(self._found.questions.values()), self._found.scale
        known, _ = find_outcomes(self._guard, tokens)
        weights = {each: 1.0 if each in self._sent else known_scale for each in known}
        number = scale * len(tokens) - sum(weights.values())
        total = scale * sum(tokens.values()) - sum(tokens[each] * weight for each, weight in weights.items())
        return max(0.0, number), max(0.0, total)

    def _about_answers(
        self, answered: Sequence[Outcome], sample: Sequence[Outcome], known_scale: float, remaining: float
    ) -> tuple[float, float]:
        """Returns the number of questions about answers that no other one equals, and their estimated tokens.

        The sample says what share of the answers that is.
        """
        texts = Counter(each.text for each in answered if isinstance(each, Completion))
        if not texts:
            longest = self._spec.generation.max_output_tokens
            return remaining, remaining * (prompt_tokens(self._questions.of("")[1]) + longest)
        questions = {text: self._questions.of(text) for text in texts}
        known, _ = find_outcomes(self._guard, {fingerprint for fingerprint, _ in questions.values()})
        tokens = {text: prompt_tokens(question) for text, (_, question) in questions.items()}
        unjudged = [text for text, (fingerprint, _) in questions.items() if fingerprint not in known]
        singles = [tokens[text] for text, number in texts.items() if number == 1]
        share = len(singles) / texts.total()
        if sample:
            share *= sum(isinstance(each, Completion) for each in sample) / len(sample)
        more = remaining * share
        total = known_scale * sum(map(tokens.__getitem__, unjudged)) + more * fmean(singles or [0.0])
        return known_scale * len(unjudged) + more, total

    def _project(self, side: Side, number: float, tokens: float) -> GuardSide:
        # A verdict has the same length for prompts and for answers, where there is no sample of the side itself.
        judged = self._judged[side] or self._judged["output" if side == "input" else "input"]
        observed = [(self._tokens[each], outcome) for each, outcome in judged.items()]
        found = project(observed, number, tokens, self._moderation.generation.max_output_tokens)
        read, said = round(found.input_tokens), round(found.output_tokens)
        return GuardSide(requests=round(number), input_tokens=read, output_tokens=said)

    def _ask(self, side: Side, texts: Mapping[str, str], rows: _Rows) -> dict[str, Outcome]:
        """Returns the verdicts on texts by the fingerprint of their prompts; without requests, the known ones."""
        if side not in self._moderation.on:
            return {}
        questions = {each: self._questions.of(text) for each, text in texts.items()}
        known, _ = find_outcomes(self._guard, {fingerprint for fingerprint, _ in questions.values()})
        new = {
            fingerprint: question
            for fingerprint, question in questions.values()
            if self._sends and fingerprint not in known
        }
        of_question: dict[str, list[Row]] = {}
        about: dict[str, list[str]] = {}
        for each, (fingerprint, question) in questions.items():
            of_question.setdefault(fingerprint, []).extend(rows.get(each, ()))
            about.setdefault(fingerprint, []).append(each)
            self._tokens[fingerprint] = prompt_tokens(question)
        sent = send(self._guard, new, of_question, about)
        self._sent |= sent.keys()
        for outcome in sent.values():
            self._usage.update(usage_of(side, outcome))
        verdicts = known | sent
        self._judged[side] |= verdicts
        return {each: verdicts[found] for each, (found, _) in questions.items() if found in verdicts}
