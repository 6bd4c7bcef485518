"""Vectors of texts: hashed words and parts of words, weighted by how rare they are. Needs scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_llmbeam.exceptions import require_extra

#: Number of positions of words, and of parts of words.
_WORDS, _PARTS = 2**15, 2**15
SIZE = _WORDS + _PARTS


def require_sklearn() -> None:
    """Refuses what needs scikit-learn where it is not installed.

    Raises:
        JobSpecError: It is not installed.
    """
    with require_extra("A distilled classifier", "cascade"):
        import sklearn  # noqa: F401


def hash_texts(texts: Sequence[str]) -> Any:
    """Returns a sparse matrix: for each text, 1 + log of the number of each word, word pair and part of a word."""
    import numpy as np
    from scipy.sparse import hstack  # type: ignore[import-untyped]
    from sklearn.feature_extraction.text import HashingVectorizer

    plain: dict[str, Any] = {"norm": None, "alternate_sign": False}
    words = HashingVectorizer(ngram_range=(1, 2), n_features=_WORDS, **plain)
    parts = HashingVectorizer(analyzer="char_wb", ngram_range=(3, 4), n_features=_PARTS, **plain)
    found = hstack([words.transform(texts), parts.transform(texts)], format="csr")
    found.data = 1 + np.log(found.data)
    return found


def weigh(hashed: Any, columns: Any, idf: Any) -> Any:
    """Returns the columns of hashed texts, weighted, each row of length 1."""
    from sklearn.preprocessing import normalize

    return normalize(hashed[:, columns].multiply(idf).tocsr(), copy=False)
