"""Length buckets: classes of prompts by input tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class LengthBuckets:
    """Assigns prompts to classes by length and predicts the output tokens of each class.

    Boundaries are lower-inclusive, as in `apache_beam.BatchElements`: (128, 512) gives [0, 128), [128, 512),
    [512, ∞).

    Args:
        boundaries: Boundaries in input tokens, ascending.
        max_output_tokens: Upper bound of every prediction.
    """

    #: Prediction of a class without answers.
    DEFAULT_OUTPUT_TOKENS = 256
    #: Weight of the newest answer, so that about the last 20 determine the prediction.
    SMOOTHING = 0.05

    def __init__(self, boundaries: Sequence[int], max_output_tokens: int) -> None:
        self.boundaries = tuple(boundaries)
        default = float(min(self.DEFAULT_OUTPUT_TOKENS, max_output_tokens))
        self._predictions: list[float | None] = [None] * (len(self.boundaries) + 1)
        self._default = default
        self._max_output_tokens = max_output_tokens

    def index(self, input_tokens: int) -> int:
        """Returns the class of a prompt, 0 for the shortest."""
        return bisect_right(self.boundaries, input_tokens)

    def expected_output_tokens(self, input_tokens: int) -> float:
        """Predicts the output tokens of a prompt of this length."""
        prediction = self._predictions[self.index(input_tokens)]
        return self._default if prediction is None else min(prediction, float(self._max_output_tokens))

    def learn(self, input_tokens: int, output_tokens: int) -> None:
        """Updates the prediction with an answer."""
        index = self.index(input_tokens)
        before = self._predictions[index]
        self._predictions[index] = (
            float(output_tokens) if before is None else before + self.SMOOTHING * (output_tokens - before)
        )


def bucket_label(boundaries: Sequence[int], index: int) -> str:
    """Returns the label of a class: `<128`, `128-511`, `≥131072`."""
    if index == 0:
        return f"<{boundaries[0]}"
    if index == len(boundaries):
        return f"≥{boundaries[-1]}"
    return f"{boundaries[index - 1]}-{boundaries[index] - 1}"
