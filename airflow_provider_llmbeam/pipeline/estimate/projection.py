"""From some answers to all of them: tokens with an interval, and time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from airflow_provider_llmbeam.spec.limits import Limits

LimitedBy = Literal["requests_per_minute", "tokens_per_minute", "in_flight"]

#: With fewer answers than this a line through them says more of them than of the others.
_ENOUGH_FOR_A_LINE = 8
#: Student's t, 97.5 %, by degrees of freedom; beyond it `_t` is exact to 0.1 %.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, slots=True)
class SampleObservation:
    """What one prompt was billed.

    Attributes:
        estimated_tokens: Of the input, before.
        input_tokens: As billed.
        output_tokens: As billed.
    """

    estimated_tokens: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Projection:
    """What prompts will be billed that nobody has asked yet.

    Attributes:
        input_tokens: Of all of them.
        output_tokens: Of all of them.
    """

    input_tokens: float
    output_tokens: float
    _residuals: tuple[tuple[float, float], ...]
    _factor: float | None
    _spread_ratio: float

    def half_width(self, input_weight: float = 1.0, output_weight: float = 1.0) -> float | None:
        """Half of the 95 % interval of the weighted sum of input and output tokens; `None` from one answer."""
        if self._factor is None:
            return None
        squares = sum((input_weight * read + output_weight * said) ** 2 for read, said in self._residuals)
        total = input_weight * self.input_tokens + output_weight * self.output_tokens
        return math.hypot(self._factor * math.sqrt(squares), 1.96 * self._spread_ratio * total)


def spread_over(ordered: Sequence[str], count: int) -> list[str]:
    """Picks `count` of them, or all if there are no more, at equal distances from the first to the last."""
    count = min(count, len(ordered))
    return [ordered[int((number + 0.5) * len(ordered) / count)] for number in range(count)]


def project(
    found: Sequence[SampleObservation], requests: float, tokens: float, spread_ratio: float = 0.0
) -> Projection:
    """Forecasts the bill of prompts from that of a sample of them.

    Input and output are each a line over the estimated tokens, by least squares, at the mean of the prompts: what
    every request has (a template, a schema, a label as the answer) and what grows with the text (the text itself,
    a translation) then count apart. Of few answers, or of prompts of one length, it is input per estimated token
    and output per request.

    Args:
        found: Of the sample; at least one.
        requests: Prompts that are not asked yet.
        tokens: Their estimated input tokens.
        spread_ratio: Standard error of these two over them, where they are known of a part of the source alone.
    """
    count = len(found)
    if not requests:
        return Projection(0.0, 0.0, (), 0.0, 0.0)
    means = [sum(values) / count for values in zip(*map(_values, found), strict=True)]
    mean, mean_input, mean_output = means
    squares = sum((one.estimated_tokens - mean) ** 2 for one in found)
    distance = tokens / requests - mean
    if is_line := count >= _ENOUGH_FOR_A_LINE and squares > 0:
        input_slope = sum((one.estimated_tokens - mean) * one.input_tokens for one in found) / squares
        output_slope = sum((one.estimated_tokens - mean) * one.output_tokens for one in found) / squares
    else:
        input_slope, output_slope = mean_input / mean, 0.0
    residuals = tuple(
        (
            one.input_tokens - mean_input - input_slope * (one.estimated_tokens - mean),
            one.output_tokens - mean_output - output_slope * (one.estimated_tokens - mean),
        )
        for one in found
    )
    freedom = count - 2 if is_line else count - 1
    # Of the mean, of the prompts themselves around it, and of the slope.
    parts = 1 / count + 1 / requests + (distance**2 / squares if is_line else 0.0)
    return Projection(
        input_tokens=requests * max(mean_input + input_slope * distance, 0.0),
        output_tokens=requests * max(mean_output + output_slope * distance, 0.0),
        _residuals=residuals,
        _factor=_t(freedom) * requests * math.sqrt(parts / freedom) if freedom else None,
        _spread_ratio=spread_ratio,
    )


def _values(one: SampleObservation) -> tuple[int, int, int]:
    return one.estimated_tokens, one.input_tokens, one.output_tokens


def _t(freedom: int) -> float:
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def sending_seconds(
    requests: float, tokens: float, limits: Limits, workers: int, latency_seconds: float | None
) -> tuple[float | None, LimitedBy | None]:
    """Forecasts how long requests take at the limits, and which of these it is that they wait for.

    Args:
        requests: To send.
        tokens: Input and output of all of them.
        limits: Of the job.
        workers: Processes, each with `limits.max_in_flight` requests under way.
        latency_seconds: Of one answer; `None` is not known.

    Returns:
        `None` twice where no limit is known.
    """
    found: list[tuple[float, LimitedBy]] = []
    if limits.requests_per_minute is not None:
        found.append((60 * requests / (limits.requests_per_minute * limits.share_ratio), "requests_per_minute"))
    if limits.tokens_per_minute is not None:
        found.append((60 * tokens / (limits.tokens_per_minute * limits.share_ratio), "tokens_per_minute"))
    if latency_seconds is not None:
        # What is under way at once is answered at once: the last round is a whole one.
        rounds = requests / min(limits.max_in_flight * workers, max(requests, 1))
        found.append((rounds * latency_seconds, "in_flight"))
    return max(found, key=lambda one: one[0], default=(None, None))
