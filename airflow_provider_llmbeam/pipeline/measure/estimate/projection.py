"""Projection from a sample to all prompts: tokens with an interval, mean prices, and time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression
from typing import Literal

from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.model.price import Price

LimitedBy = Literal["requests_per_minute", "tokens_per_minute", "in_flight", "learned_rate", "usage_tier"]

#: Minimum number of answers for a linear fit; with fewer it overfits.
_ENOUGH_FOR_A_LINE = 8
#: Student's t, 97.5 %, by degrees of freedom; beyond it `_t` is exact to 0.1 %.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, slots=True)
class Projection:
    """Projected tokens of the prompts that are not sent yet.

    Attributes:
        input_tokens: Input tokens of all these prompts.
        output_tokens: Output tokens of all these prompts.
    """

    input_tokens: float
    output_tokens: float
    _residuals: tuple[tuple[float, float], ...]
    _factor: float | None
    _spread_ratio: float

    def error_ratio(self, input_weight: float = 1.0, output_weight: float = 1.0) -> float | None:
        """Returns half of the 95 % interval of the weighted sum of tokens over the sum; `None` with one answer."""
        if self._factor is None:
            return None
        squares = sum((input_weight * read + output_weight * said) ** 2 for read, said in self._residuals)
        total = input_weight * self.input_tokens + output_weight * self.output_tokens
        return math.hypot(self._factor * math.sqrt(squares) / total, 1.96 * self._spread_ratio) if total else 0.0


def project(
    observed: Sequence[tuple[int, Outcome]],
    requests: float,
    tokens: float,
    longest_output: int,
    spread_ratio: float = 0.0,
) -> Projection:
    """Projects the tokens of the remaining prompts from a sample; without one, each output is the longest.

    Input and output are each fitted by least squares as a line over the estimated tokens, which separates the part
    of every request (a template, a schema, a label as the answer) from the part that grows with the text (the text
    itself, a translation). With few answers, or prompts of one length, input per estimated token and output per
    request are used.

    Args:
        observed: Estimated input tokens and outcome of each prompt of the sample.
        requests: Number of prompts that are not sent yet.
        tokens: Their estimated input tokens.
        longest_output: Maximum output tokens of a request.
        spread_ratio: Relative standard error of these two numbers, if only a part of the source was read.
    """
    if not observed:
        return Projection(tokens, requests * longest_output, (), None, spread_ratio)
    if not requests:
        return Projection(0.0, 0.0, (), 0.0, 0.0)
    count, sizes = len(observed), [size for size, _ in observed]
    mean = fmean(sizes)
    squares = sum((size - mean) ** 2 for size in sizes)
    is_line = count >= _ENOUGH_FOR_A_LINE and squares > 0
    said = [outcome.tokens.output for _, outcome in observed]
    read = [outcome.tokens.input for _, outcome in observed]
    (input_slope, input_base), (output_slope, output_base) = (
        (linear_regression(sizes, read), linear_regression(sizes, said))
        if is_line
        else ((fmean(read) / mean, 0.0), (0.0, fmean(said)))
    )
    residuals = tuple(
        (
            outcome.tokens.input - input_base - input_slope * size,
            outcome.tokens.output - output_base - output_slope * size,
        )
        for size, outcome in observed
    )
    freedom = count - 2 if is_line else count - 1
    # Variance of the mean, of the prompts around it, and of the slope.
    parts = 1 / count + 1 / requests + ((tokens / requests - mean) ** 2 / squares if is_line else 0.0)
    return Projection(
        input_tokens=max(input_base * requests + input_slope * tokens, 0.0),
        output_tokens=max(output_base * requests + output_slope * tokens, 0.0),
        _residuals=residuals,
        _factor=_t(freedom) * requests * math.sqrt(parts / freedom) if freedom else None,
        _spread_ratio=spread_ratio,
    )


def mean_rates(price: Price, sample: Sequence[Tokens]) -> Price:
    """Returns the mean price of the tokens of a sample, some of which are those of long prompts."""
    plain = price.model_copy(update={"long_prompts": None})
    listed, cost = (sum(rates.cost_usd(*tokens.priced) for tokens in sample) for rates in (plain, price))
    factor = cost / listed if listed else 1.0
    rates = {name: value for name, value in plain if name.endswith("_tokens") and value is not None}
    return plain.model_copy(update={name: value * factor for name, value in rates.items()})


def input_share(sample: Sequence[Tokens], name: Literal["cached", "audio"]) -> float:
    """Returns the share of some input tokens, such as those from the provider's cache, in those of a sample."""
    read = sum(tokens.input for tokens in sample)
    return sum(getattr(tokens, name) for tokens in sample) / read if read else 0.0


def _t(freedom: int) -> float:
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def sending_seconds(
    requests: float,
    tokens: float,
    limits: Limits,
    workers: int,
    latency_seconds: float | None,
    learned_seconds: float | None = None,
    tier_seconds: float | None = None,
) -> tuple[float | None, LimitedBy | None]:
    """Projects the duration of requests at the limits, and the limit that determines it.

    Args:
        requests: Number of requests.
        tokens: Input and output tokens of all requests.
        limits: Limits of the job.
        workers: Number of processes, each with `limits.max_in_flight` concurrent requests.
        latency_seconds: Mean latency of an answer, in seconds; `None` if not known.
        learned_seconds: Duration at the rate that an earlier run has learned; `None` if a quota is known, or none
            has.
        tier_seconds: Duration at the threshold of the usage tier; `None` if none is stated.

    Returns:
        The duration in seconds and the limit; both `None` if no limit is known.
    """
    found: list[tuple[float, LimitedBy]] = []
    if limits.requests_per_minute is not None:
        found.append((60 * requests / (limits.requests_per_minute * limits.share_ratio), "requests_per_minute"))
    if limits.tokens_per_minute is not None:
        found.append((60 * tokens / (limits.tokens_per_minute * limits.share_ratio), "tokens_per_minute"))
    if learned_seconds is not None:
        found.append((learned_seconds, "learned_rate"))
    if tier_seconds is not None:
        found.append((tier_seconds, "usage_tier"))
    if latency_seconds is not None:
        # Concurrent requests end together: the last round counts as a whole one.
        rounds = requests / min(limits.max_in_flight * workers, max(requests, 1))
        found.append((rounds * latency_seconds, "in_flight"))
    return max(found, key=lambda one: one[0], default=(None, None))
