"""A classifier alone, as a model without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import NO_TOKENS
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.distilled.fit import Classifier, FitError, read_fit
from airflow_provider_llmbeam.providers.distilled.vectors import hash_texts, require_sklearn, weigh
from airflow_provider_llmbeam.spec.model import DistilledModel, Generation
from airflow_provider_llmbeam.spec.model.tier import AskedTier


class DistilledBackend:
    """Answers by a fit: prompts are texts if it is on `tfidf`, else vectors as JSON."""

    def __init__(self, model: DistilledModel, classifier: Classifier) -> None:
        self._model, self._classifier = model, classifier
        self._idf = None if classifier.fit.idf is None else np.array(classifier.fit.idf)

    async def complete(self, prompt: Prompt) -> Reply:
        """Answers one prompt, in a thread: others are read meanwhile."""
        ((value, score),) = await asyncio.to_thread(self._answer, prompt.text)
        is_json = self._classifier.fit.has_schema
        return Reply(
            text=json.dumps(value, ensure_ascii=False) if is_json else str(value),
            finish_reason="stop",
            tokens=NO_TOKENS,
            model=self._model.name,
            mean_logprob=score,
        )

    async def aclose(self) -> None:
        """Does nothing: there is no connection."""

    def _answer(self, text: str) -> list[tuple[Any, float]]:
        fit = self._classifier.fit
        if self._idf is not None:
            return self._classifier.answer(weigh(hash_texts([text]), fit.columns, self._idf))
        try:
            vector = np.array([json.loads(text)], dtype=float)
        except (ValueError, TypeError):
            vector = np.empty(0)
        if vector.shape != (1, fit.size) or not np.isfinite(vector).all():
            raise RequestError(
                "bad_request",
                f"the prompt must be a list of {fit.size} numbers, as the fit has learned from vectors, e.g. "
                f"`{{{{ row.vector | tojson }}}}`; got {text[:60]!r}",
            )
        return self._classifier.answer(vector)


def open_backend(
    model: DistilledModel,
    generation: Generation,
    output_schema: Mapping[str, Any] | None,
    *,
    asked_tier: AskedTier = "standard",
) -> DistilledBackend:
    """Reads the fit; see `providers.backends`.

    Raises:
        JobSpecError: It cannot be used, or scikit-learn is missing.
    """
    from apache_beam.io.filesystems import FileSystems

    require_sklearn()
    try:
        with FileSystems.open(model.fit) as file:
            classifier = Classifier(read_fit(file.read(), model.name))
    except FitError as error:
        raise JobSpecError(f"`model.fit`: {error}; got {model.fit!r}. Nothing was sent or billed.") from error
    except Exception as error:
        raise JobSpecError(
            f"`model.fit`: cannot be read: {error}; got {model.fit!r}. Nothing was sent or billed."
        ) from error
    return DistilledBackend(model, classifier)
