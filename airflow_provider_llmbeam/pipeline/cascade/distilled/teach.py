"""Teaches a distilled stage from the draws that choose, and from more of them while they pay."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.pipeline.cascade.agreement import agrees, find_judged_parts
from airflow_provider_llmbeam.pipeline.cascade.distilled.curve import LearningPoint, labels_pay, measure
from airflow_provider_llmbeam.pipeline.cascade.distilled.learn import MIN_PROMPTS, Lesson, learn
from airflow_provider_llmbeam.pipeline.cascade.distilled.stage import find_vectors
from airflow_provider_llmbeam.pipeline.cascade.sample import Sample, SampledPrompt
from airflow_provider_llmbeam.providers.distilled.fit import Fit
from airflow_provider_llmbeam.spec.cascade import Cascade
from airflow_provider_llmbeam.spec.distilled import DistilledStage, find_heads
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger("llmbeam")


@dataclass(frozen=True)
class Taught:
    """What a distilled stage has learned.

    Attributes:
        fit: The fit; `None` if there is too little to learn from.
        answers: Answer and score by the fingerprint of the prompts that it has learned from, each by fits that
            have not seen it.
        curve: The learning curve.
    """

    fit: Fit | None = None
    answers: Mapping[str, tuple[Any, float]] = field(default_factory=dict)
    curve: tuple[LearningPoint, ...] = ()


class Teacher:
    """Teaches one stage.

    Args:
        spec: The job.
        stage: The stage.
        sample: The sample, with the draws for more labels.
        ask: Asks the stage and `model` about prompts.
        vectors: What the stage has answered, by fingerprint.
        answers: What `model` has answered, by fingerprint.
        value_of: Returns the value of an answer.
    """

    def __init__(
        self,
        spec: JobSpec,
        stage: DistilledStage,
        sample: Sample,
        ask: Callable[[Sequence[SampledPrompt]], None],
        vectors: Mapping[str, Sequence[Outcome]],
        answers: Mapping[str, Outcome],
        value_of: Callable[[Completion], Any],
    ) -> None:
        self._spec, self._stage, self._sample, self._ask = spec, stage, sample, ask
        self._vectors, self._answers, self._value_of = vectors, answers, value_of
        self._cascade = cast("Cascade", spec.cascade)

    def teach(self) -> Taught:
        """Learns, and asks for as many labels again while they pay."""
        chosen, more, curve = self._cascade.draws // 2, 0, list[LearningPoint]()
        while True:
            prompts = self._prompts(more)
            self._ask(prompts)
            fingerprints, lesson = self._lesson(prompts, more)
            if len(lesson) < MIN_PROMPTS:
                return Taught(curve=tuple(curve))
            if not curve:
                earlier = (len(lesson) // part for part in (4, 2))
                curve = [self._learn(lesson.first(size))[1] for size in earlier if size >= MIN_PROMPTS]
            (fit, answers), point = self._learn(lesson)
            curve.append(point)
            _log.info(
                "Cascade: %s has learned from %s labels, and agrees on %.1f%% of the draws that it has not seen.",
                self._stage.name,
                f"{point.labels:,}",
                100 * point.agreement,
            )
            labels = min(chosen + more, self._stage.max_labels - more)
            if not labels_pay(curve, rows=self._sample.rows, labels=labels):
                return Taught(fit, dict(zip(fingerprints, answers, strict=True)), tuple(curve))
            more += labels

    def _prompts(self, more: int) -> list[SampledPrompt]:
        """Returns the prompts of the draws that choose, and of more draws, in their order."""
        found = [each for each in self._sample.prompts if self._draws(each, more)]
        return sorted(found, key=lambda each: self._draws(each, more)[0])

    def _draws(self, prompt: SampledPrompt, more: int) -> list[int]:
        draws = self._cascade.draws
        return [each for each in prompt.draws if each < draws // 2 or draws <= each < draws + more]

    def _lesson(self, prompts: Sequence[SampledPrompt], more: int) -> tuple[list[str], Lesson]:
        found = [
            (each, outcomes[0], answer)
            for each in prompts
            if (outcomes := self._vectors.get(each.fingerprint))
            and isinstance(answer := self._answers[each.fingerprint], Completion)
        ]
        positions, vectors = find_vectors(self._stage.embedding, [outcome for _, outcome, _ in found])
        found = [found[position] for position in positions]
        weights = np.array([len(self._draws(each, more)) for each, *_ in found], dtype=float)
        values = [self._value_of(answer) for *_, answer in found]
        return [each.fingerprint for each, *_ in found], Lesson(vectors, values, weights)

    def _learn(self, lesson: Lesson) -> tuple[tuple[Fit, list[tuple[Any, float]]], LearningPoint]:
        spec = self._spec
        learned = learn(
            lesson,
            self._stage.embedding,
            find_heads(spec.prompt.output_schema, spec.generation.choices),
            has_schema=spec.prompt.output_schema is not None,
            learned_from=self._digests(lesson),
        )
        agreement = self._cascade.agreement
        is_right = [  # what a judge might let pass disagrees here: it is not asked about the curve
            agrees(agreement, answer, value) and not find_judged_parts(agreement, answer, value)
            for (answer, _), value in zip(learned.answers, lesson.values, strict=True)
        ]
        scores = [score for _, score in learned.answers]
        point = measure(scores, is_right, lesson.weights.tolist(), self._cascade.target_agreement)
        return (learned.fit, learned.answers), point

    def _digests(self, lesson: Lesson) -> dict[str, str]:
        spec = self._spec
        models = [spec.model.name, self._stage.model.name]
        parts = {
            "sample": [len(lesson), self._sample.rows, [*map(str, lesson.values)]],
            "prompt": spec.prompt.model_dump(mode="json", exclude={"output_schema"}),
            "schema": spec.prompt.output_schema,
            "models": models,
        }
        return {
            name: hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:16]
            for name, part in parts.items()
        }
