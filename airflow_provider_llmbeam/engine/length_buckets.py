"""Length buckets: cost classes of prompts by input tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class LengthBuckets:
    """Puts prompts into classes by length and forecasts the output of each class.

    Boundaries are lower-inclusive, as in `apache_beam.BatchElements`: (128, 512) gives [0, 128), [128, 512),
    [512, ∞).

    Args:
        boundaries: Input tokens, ascending.
        max_output_tokens: Upper bound of every forecast.
    """

    #: Until a class has answers of its own.
    COLD_OUTPUT_TOKENS = 256
    #: Weight of the newest answer: about the last 20 count.
    SMOOTHING = 0.05

    def __init__(self, boundaries: Sequence[int], max_output_tokens: int) -> None:
        self.boundaries = tuple(boundaries)
        cold = float(min(self.COLD_OUTPUT_TOKENS, max_output_tokens))
        self._forecast: list[float | None] = [None] * (len(self.boundaries) + 1)
        self._cold = cold
        self._max_output_tokens = max_output_tokens

    def index(self, input_tokens: int) -> int:
        """Returns the class of a prompt, 0 for the shortest."""
        return bisect_right(self.boundaries, input_tokens)

    def expected_output_tokens(self, input_tokens: int) -> float:
        """Forecasts the output of a prompt of this length."""
        forecast = self._forecast[self.index(input_tokens)]
        return self._cold if forecast is None else min(forecast, float(self._max_output_tokens))

    def learn(self, input_tokens: int, output_tokens: int) -> None:
        """Takes note of what an answer really cost."""
        index = self.index(input_tokens)
        before = self._forecast[index]
        self._forecast[index] = (
            float(output_tokens) if before is None else before + self.SMOOTHING * (output_tokens - before)
        )


def bucket_label(boundaries: Sequence[int], index: int) -> str:
    """Names a class for people: `<128`, `128-511`, `≥131072`."""
    if index == 0:
        return f"<{boundaries[0]}"
    if index == len(boundaries):
        return f"≥{boundaries[-1]}"
    return f"{boundaries[index - 1]}-{boundaries[index] - 1}"
