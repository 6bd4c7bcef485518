"""The answers of a distilled stage, in blocks: vectors become answers by a fit that is read once per process."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import apache_beam as beam
import numpy as np

from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.token_counts import NO_TOKENS
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.cascade.distilled.learn import make_vectors, weigh_vectors
from airflow_provider_llmbeam.pipeline.elements import Escalation
from airflow_provider_llmbeam.providers.distilled.fit import Classifier, Fit, FitError, digest_of, read_fit
from airflow_provider_llmbeam.spec.distilled import ColumnVectors, DistilledStage, TfidfVectors, Vectors
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger("llmbeam")

#: Rows that are answered at once.
_BLOCK = 1024
_NO_VECTOR = Failure(kind="invalid_output", message="There is no vector of the length that the fit needs.")


def write_fit(spec: JobSpec, fit: Fit) -> str:
    """Writes a fit under its digest, and returns its address."""
    content = fit.to_bytes()
    uri = f"{spec.paths.shared_uri}cascades/{digest_of(content)}.json"
    storage.replace(uri, content)
    return uri


def load_classifier(uri: str) -> Classifier:
    """Reads a fit.

    Raises:
        FitError: It cannot be read or used, or is not the one that was written there.
    """
    try:
        content = storage.read(uri)
    except Exception as error:
        raise FitError(f"the fit cannot be read: {error}") from error
    return Classifier(read_fit(content, uri.rpartition("/")[2].removesuffix(".json")))


def hand_on(text: str) -> Completion:
    """Returns what stands for the answer of a server where none is asked: the text, for nothing."""
    now = time.time()
    return Completion(
        text=text,
        model="",
        finish_reason="stop",
        tokens=NO_TOKENS,
        cost_nano_usd=0,
        attempts=0,
        latency_seconds=0.0,
        sent_at=now,
        answered_at=now,
    )


def find_vectors(
    embedding: Vectors, outcomes: Sequence[Outcome], size: int | None = None
) -> tuple[list[int], Any]:
    """Returns the positions of the outcomes that are vectors, and a matrix of these.

    Args:
        embedding: What makes vectors.
        outcomes: Vectors of an embedding model, texts with `tfidf`, or vectors as texts.
        size: Length of a vector. `None`: that of the first one.
    """
    found: list[Any] = []
    positions = []
    for position, outcome in enumerate(outcomes):
        if isinstance(outcome, Failure):
            continue
        if isinstance(embedding, TfidfVectors):
            vector: Any = outcome.text
        else:
            vector = json.loads(outcome.text) if isinstance(embedding, ColumnVectors) else outcome.parsed
            size = size or len(vector)
            if len(vector) != size:
                continue
        positions.append(position)
        found.append(vector)
    return positions, make_vectors(embedding, found) if found else np.empty((0, size or 0))


def answer_block(classifier: Classifier, embedding: Vectors, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Returns the answers to vectors; a failure stays, and what is no vector of the right length becomes one.

    Args:
        classifier: Answers.
        embedding: What has made the vectors.
        outcomes: See `find_vectors`.
    """
    fit = classifier.fit
    positions, vectors = find_vectors(embedding, outcomes, fit.size)
    found: list[Outcome] = [each if isinstance(each, Failure) else _NO_VECTOR for each in outcomes]
    if positions:
        for position, (value, score) in zip(
            positions, classifier.answer(weigh_vectors(fit, vectors)), strict=True
        ):
            found[position] = make_answer(outcomes[position], value, score, has_schema=fit.has_schema)
    return found


def make_answer(outcome: Outcome, value: Any, score: float, *, has_schema: bool) -> Outcome:
    """Returns the outcome of a vector with the answer to it."""
    if isinstance(outcome, Failure):
        return outcome
    text = json.dumps(value, ensure_ascii=False) if has_schema else str(value)
    return replace(outcome, text=text, parsed=value if has_schema else None, mean_logprob=score)


class AnswerVectors(beam.PTransform):
    """Turns `Escalation`s with a vector as their sample into those with the answer of a fit.

    Args:
        stage: The stage.
        fit_uri: Address of the fit.
    """

    def __init__(self, stage: DistilledStage, fit_uri: str) -> None:
        super().__init__()
        self._stage, self._fit_uri = stage, fit_uri

    def expand(self, escalations: beam.PCollection) -> beam.PCollection:
        """Answers block by block."""
        blocks = escalations | "Blocks" >> beam.BatchElements(min_batch_size=_BLOCK, max_batch_size=_BLOCK)
        return blocks | "Answer" >> beam.ParDo(_AnswerBlock(self._stage, self._fit_uri))


class _AnswerBlock(beam.DoFn):
    def __init__(self, stage: DistilledStage, fit_uri: str) -> None:
        super().__init__()
        self._stage, self._fit_uri = stage, fit_uri

    def setup(self) -> None:
        """Reads the fit, once per worker."""
        self._classifier: Classifier | None = None
        self._failure = _NO_VECTOR
        try:
            self._classifier = load_classifier(self._fit_uri)
        except FitError as error:
            _log.warning("Cascade: the rows of %r escalate: %s.", self._stage.name, error)
            self._failure = Failure(kind="invalid_output", message=str(error))

    def process(self, block: list[Escalation]) -> Iterator[Escalation]:
        """Answers one block."""
        outcomes = [escalation.samples[0][0] for escalation in block]
        answers: list[Outcome]
        if self._classifier is None:
            answers = [each if isinstance(each, Failure) else self._failure for each in outcomes]
        else:
            answers = answer_block(self._classifier, self._stage.embedding, outcomes)
        for escalation, answer in zip(block, answers, strict=True):
            yield replace(escalation, samples=((answer, escalation.samples[0][1]),))
