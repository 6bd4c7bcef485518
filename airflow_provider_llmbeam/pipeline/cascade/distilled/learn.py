"""Learns a classifier from answers of `model`: logistic regressions, calibrated by cross-fitting. Pure.

What is chosen here (strength of the regularisation, temperature) is chosen on answers of folds that were left out.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airflow_provider_llmbeam.providers.distilled.fit import ABSENT, Fit, Floats, Head, answers_of
from airflow_provider_llmbeam.providers.distilled.vectors import SIZE, hash_texts, weigh
from airflow_provider_llmbeam.spec.distilled import HeadType, TfidfVectors, Vectors

#: Inverse strengths of the regularisation that are tried, for vectors of length 1.
_STRENGTHS = (1.0, 10.0, 100.0)
_FOLDS = 5
_TOLERANCE = 1e-3
#: Least number of prompts that have a hashed word for it to count.
_LEAST_PROMPTS = 2
#: Largest number of hashed words that count, the most frequent ones: 20 labels then are a fit of 4 MB.
_MAX_COLUMNS = 20_000
#: Least number of different prompts to learn from.
MIN_PROMPTS = 10
#: Significant digits of a coefficient.
_DIGITS = 6
#: Temperatures that are considered, as logarithms.
_TEMPERATURES = (-2.0, 2.0)


@dataclass(frozen=True)
class Lesson:
    """What is learned from: different prompts, in the order in which they were first drawn.

    Attributes:
        vectors: A row for each prompt: an array, or a sparse matrix of hashed texts.
        values: Answers of `model`.
        weights: Number of draws of each.
    """

    vectors: Any
    values: Sequence[Any]
    weights: Floats

    def __len__(self) -> int:
        return len(self.values)

    def first(self, count: int) -> Lesson:
        """Returns the first prompts of it."""
        return Lesson(self.vectors[:count], self.values[:count], self.weights[:count])


@dataclass(frozen=True)
class Learned:
    """A fit, and what fits of the other folds answer to what it has learned from.

    Attributes:
        fit: The fit.
        answers: For each prompt of the lesson, the answer and its score, without its own label.
    """

    fit: Fit
    answers: list[tuple[Any, float]]


def make_vectors(embedding: Vectors, found: Sequence[Any]) -> Any:
    """Returns a matrix with a row for each text, or for each vector.

    Args:
        embedding: What turns texts into vectors.
        found: The texts with `tfidf`, else the vectors, which have one length.
    """
    return hash_texts(found) if isinstance(embedding, TfidfVectors) else np.array(found, dtype=float)


def weigh_vectors(fit: Fit, vectors: Any) -> Any:
    """Returns what the coefficients of a fit are for."""
    return vectors if fit.idf is None else weigh(vectors, fit.columns, np.array(fit.idf))


def learn(
    lesson: Lesson,
    embedding: Vectors,
    heads: Sequence[HeadType],
    *,
    has_schema: bool,
    learned_from: Mapping[str, str],
) -> Learned:
    """Learns a classifier.

    Args:
        lesson: What is learned from; at least `MIN_PROMPTS` prompts.
        embedding: What has made its vectors.
        heads: Fields of the answers.
        has_schema: Whether the answers are values of an output schema.
        learned_from: Digests for the fit.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    columns = idf = None
    vectors, scale = lesson.vectors, 1.0
    if isinstance(embedding, TfidfVectors):
        numbers = np.bincount(vectors.indices, minlength=SIZE)
        frequent = np.argsort(-numbers, kind="stable")[:_MAX_COLUMNS]
        columns = np.sort(frequent[numbers[frequent] >= min(_LEAST_PROMPTS, numbers.max())])
        idf = _rounded(1 + np.log((1 + len(lesson)) / (1 + numbers[columns])))
        vectors = weigh(vectors, columns, idf).astype(np.float32)
    else:
        scale = float(np.sqrt(np.mean(np.square(vectors).sum(axis=1)))) or 1.0
        vectors = vectors / scale
    fitted, logits = [], []
    for head in heads:
        labels, targets = _labels_of(head, lesson.values)
        # One thread: on two busy cores, the threads of BLAS waited for each other for 30 times as long.
        with threadpool_limits(1):
            learned, found = _learn_head(vectors, targets, lesson.weights, head.kind == "many")
        weights, intercepts = learned
        fitted.append(
            Head(
                field=head.field,
                kind="many" if head.kind == "many" else "one",
                labels=labels,
                weights=_rounded(weights / scale).tolist(),
                intercepts=_rounded(intercepts).tolist(),
            )
        )
        logits.append(found)
    fit = Fit(
        embedding=embedding.model_dump(mode="json"),
        size=SIZE if columns is not None else vectors.shape[1],
        columns=None if columns is None else columns.tolist(),
        idf=None if idf is None else idf.tolist(),
        has_schema=has_schema,
        heads=tuple(fitted),
        learned_from=dict(learned_from),
    )
    return Learned(fit, answers_of(fit.heads, logits, has_schema=has_schema))


def _labels_of(head: HeadType, values: Sequence[Any]) -> tuple[tuple[str, ...], Floats]:
    """Returns the labels of a head, and for each answer a row with 1 for each of its labels."""

    def read(value: Any) -> Any:
        if head.field is None:
            return value
        return value.get(head.field, ABSENT) if isinstance(value, Mapping) else ABSENT

    found = []
    for value in map(read, values):
        items = value if head.kind == "many" and isinstance(value, list) else [value]
        found.append({json.dumps(item) if item != ABSENT else ABSENT for item in items})
    if head.kind == "many":
        found = [each - {ABSENT, "null"} for each in found]
    labels = tuple(sorted(set().union(*found))) or (ABSENT,)
    return labels, np.array([[label in each for label in labels] for each in found], dtype=float)


def _learn_head(
    vectors: Any, targets: Floats, weights: Floats, is_many: bool
) -> tuple[tuple[Floats, Floats], Floats]:
    """Returns the coefficients of a head, and its logits for each answer by fits without it."""
    from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]
    from sklearn.model_selection import KFold

    solve = _solve_many if is_many else _solve_one
    folds = [*KFold(min(_FOLDS, len(targets)), shuffle=True, random_state=0).split(targets)]

    def cross(strength: float) -> Floats:
        logits = np.zeros_like(targets)
        for others, left_out in folds:
            found, intercepts = solve(vectors[others], targets[others], weights[others], strength)
            logits[left_out] = np.asarray(vectors[left_out] @ found.T) + intercepts
        return logits

    def loss(logits: Floats) -> float:
        if is_many:
            losses = np.logaddexp(0, np.where(targets > 0, -logits, logits)).sum(axis=1)
        else:
            losses = np.logaddexp.reduce(logits, axis=1) - (logits * targets).sum(axis=1)
        return float(np.average(losses, weights=weights))

    tried = [(loss(logits), strength, logits) for strength in _STRENGTHS for logits in [cross(strength)]]
    _, strength, logits = min(tried, key=lambda each: each[0])
    best = minimize_scalar(lambda log: loss(logits / np.exp(log)), bounds=_TEMPERATURES, method="bounded")
    temperature = float(np.exp(best.x))
    found, intercepts = solve(vectors, targets, weights, strength)
    return (found / temperature, intercepts / temperature), logits / temperature


def _solve_one(vectors: Any, targets: Floats, weights: Floats, strength: float) -> tuple[Floats, Floats]:
    """Returns weights and intercepts of a multinomial regression; a label that no answer has is unlikely."""
    labels = targets.argmax(axis=1)
    present = np.unique(labels)
    found = np.zeros((targets.shape[1], vectors.shape[1]))
    intercepts = np.full(targets.shape[1], -np.log(len(labels) + 1.0))
    intercepts[present] = 0.0
    if len(present) > 1:
        coefficients, constants = _regress(vectors, labels, weights, strength)
        if len(present) == 2:
            coefficients, constants = (np.concatenate([0 * each, each]) for each in (coefficients, constants))
        found[present], intercepts[present] = coefficients, constants
    return found, intercepts


def _solve_many(vectors: Any, targets: Floats, weights: Floats, strength: float) -> tuple[Floats, Floats]:
    """Returns weights and intercepts of a regression for each label; one of all answers, or of none, has none."""
    found, intercepts = np.zeros((targets.shape[1], vectors.shape[1])), np.zeros(targets.shape[1])
    for index, has_label in enumerate(targets.T):
        number = has_label.sum()
        if 0 < number < len(targets):
            (found[index],), (intercepts[index],) = _regress(vectors, has_label, weights, strength)
        else:
            intercepts[index] = np.log((number + 0.5) / (len(targets) - number + 0.5))
    return found, intercepts


def _regress(vectors: Any, labels: NDArray[Any], weights: Floats, strength: float) -> tuple[Floats, Floats]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        # Coefficients that are not quite the best ones are tested like others.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(C=strength, max_iter=300, tol=_TOLERANCE).fit(
            vectors, labels, sample_weight=weights
        )
    return model.coef_, model.intercept_


def _rounded(numbers: Floats) -> Floats:
    """Returns numbers with the digits that the JSON of a fit has."""
    shape, flat = numbers.shape, numbers.ravel()
    return np.array([float(f"{number:.{_DIGITS}g}") for number in flat]).reshape(shape)
