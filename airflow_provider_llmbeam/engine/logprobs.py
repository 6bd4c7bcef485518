"""One number from the log-probabilities of the tokens of an answer, by which a cascade orders answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from airflow_provider_llmbeam.spec.prompt.labels import find_label_fields

#: A token and the natural logarithm of its probability.
TokenLogprob = tuple[str, float]


def score_logprob(
    tokens: Sequence[TokenLogprob], of: Literal["minimum", "label"], output_schema: Mapping[str, Any] | None
) -> float | None:
    """Returns the log-probability of the least probable token, or that of the label; `None` if it is not known.

    That of the label is the sum over the tokens that have a character of it, quotation marks not included.

    Args:
        tokens: The tokens of the answer.
        of: `minimum`, or `label`: the value of the first property that is a label, or else the whole answer.
        output_schema: Schema of the answer.
    """
    if not tokens:
        return None
    if of == "minimum":
        return min(logprob for _, logprob in tokens)
    names = () if output_schema is None else find_label_fields(output_schema)
    if not names:
        return sum(logprob for _, logprob in tokens)
    text = "".join(token for token, _ in tokens)
    # Tokens are no JSON yet: one may be a part of a character, and the answer may have text around it.
    found = re.search(rf'"{re.escape(names[0])}"\s*:\s*(?:"([^"]+)"|([^\s",}}]+))', text)
    if found is None:
        return None
    first, end = found.span(found.lastindex or 0)
    position, total = 0, 0.0
    for token, logprob in tokens:
        if position < end and position + len(token) > first:
            total += logprob
        position += len(token)
    return total
