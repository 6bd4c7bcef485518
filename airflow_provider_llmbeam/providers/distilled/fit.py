"""A fit: the coefficients of a classifier as plain JSON, and its answers to vectors. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError, model_validator

from airflow_provider_llmbeam.exceptions import JobSpecError

Floats = NDArray[np.float64]

#: Label of a field that an answer does not have.
ABSENT = ""


class FitError(JobSpecError):
    """A fit cannot be used."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Head(_Value):
    """Coefficients for one field of the answers.

    Attributes:
        field: Name of the field; `None` for the whole answer.
        kind: `one` of the labels (multinomial), or `many` of them (one logistic regression for each).
        labels: Values, as JSON; an empty text for a field that is left out.
        weights: For each label, the weights of the numbers of a vector.
        intercepts: For each label, its intercept.
    """

    field: str | None
    kind: Literal["one", "many"]
    labels: tuple[str, ...]
    weights: list[list[FiniteFloat]]
    intercepts: list[FiniteFloat]


class Fit(_Value):
    """A classifier.

    Attributes:
        embedding: What turns texts into vectors: `embedding` of the stage, as plain data.
        size: Length of a vector.
        columns: Positions of a vector that the weights are for; `None` for all.
        idf: With `tfidf`, the weight of each of these positions.
        has_schema: Whether the answers are values of an output schema.
        heads: Coefficients of each field.
        learned_from: Digests of what it has learned from: `sample`, `prompt`, `schema` and `models`.
    """

    version: Literal[1] = 1
    embedding: dict[str, Any]
    size: int
    columns: list[int] | None = None
    idf: list[FiniteFloat] | None = None
    has_schema: bool
    heads: tuple[Head, ...]
    learned_from: dict[str, str] = {}

    @model_validator(mode="after")
    def _shapes_match(self) -> Self:
        width = self.size if self.columns is None else len(self.columns)
        if self.idf is not None and len(self.idf) != width:
            raise ValueError(f"`idf` has {len(self.idf)} numbers, and {width} are needed")
        for head in self.heads:
            rows = len(head.labels)
            if not rows or len(head.intercepts) != rows or len(head.weights) != rows:
                raise ValueError(f"the coefficients of {head.field!r} are not {rows} rows")
            if any(len(row) != width for row in head.weights):
                raise ValueError(f"the coefficients of {head.field!r} are not {width} numbers for each label")
        return self

    def to_bytes(self) -> bytes:
        """Returns the fit as JSON."""
        return self.model_dump_json().encode()


def digest_of(content: bytes) -> str:
    """Returns the digest of a fit, which is the name of its file."""
    return hashlib.sha256(content).hexdigest()[:32]


def read_fit(content: bytes, digest: str) -> Fit:
    """Reads a fit.

    Args:
        content: The JSON.
        digest: Its digest, as it was written.

    Raises:
        FitError: It is not the one that was written, or cannot be used.
    """
    try:
        fit = Fit.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise FitError(f"the fit is damaged: {place}{': ' if place else ''}{first['msg']}") from error
    if digest_of(content) != digest:
        raise FitError("the fit is damaged: it is not the one that was tested")
    return fit


class Classifier:
    """Answers by a fit, for many vectors at once.

    Args:
        fit: The fit.
    """

    def __init__(self, fit: Fit) -> None:
        self.fit = fit
        self._heads = [(head, np.array(head.weights), np.array(head.intercepts)) for head in fit.heads]

    def answer(self, vectors: Any) -> list[tuple[Any, float]]:
        """Returns for each vector the answer, and the logarithm of the probability that all of it is right.

        Args:
            vectors: A matrix with a vector in each row: an array, or a sparse one of scipy.
        """
        logits = [np.asarray(vectors @ weights.T) + intercepts for _, weights, intercepts in self._heads]
        return answers_of(self.fit.heads, logits, has_schema=self.fit.has_schema)


def answers_of(heads: Sequence[Head], logits: Sequence[Floats], *, has_schema: bool) -> list[tuple[Any, float]]:
    """Returns answers and scores by the logits of each head: a row for each answer, a column for each label."""
    rows = len(logits[0])
    scores, chosen = np.zeros(rows), []
    for head, found in zip(heads, logits, strict=True):
        values = [None if label == ABSENT else json.loads(label) for label in head.labels]
        if head.kind == "one":
            best = found.argmax(axis=1)
            top = found.max(axis=1)
            scores -= np.log(np.exp(found - top[:, None]).sum(axis=1))
            chosen.append([(values[index], head.labels[index] != ABSENT) for index in best])
        else:
            scores -= np.logaddexp(0, -np.abs(found)).sum(axis=1)
            chosen.append([([values[at] for at in np.flatnonzero(row)], True) for row in found > 0])
    if heads[0].field is None:
        return [(value, float(score)) for (value, _), score in zip(chosen[0], scores, strict=True)]
    names = [head.field for head in heads]
    return [
        ({name: value for name, (value, is_there) in zip(names, row, strict=True) if is_there}, float(score))
        for row, score in zip(zip(*chosen, strict=True), scores, strict=True)
    ]
