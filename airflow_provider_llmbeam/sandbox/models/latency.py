"""The latency of the emulated models."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Time to first byte, log-normal around its mean, plus time per output token.

    Attributes:
        mean_seconds: Mean time to the first byte, in seconds, >= 0.
        sigma: Standard deviation of the underlying normal distribution; 0 means always `mean_seconds`.
        per_output_token_seconds: Time per token of the answer, in seconds, >= 0.

    Raises:
        ValueError: A value is negative or not finite.
    """

    mean_seconds: float = 0.0
    sigma: float = 0.0
    per_output_token_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mean_seconds", "sigma", "per_output_token_seconds"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"`{name}` must be a finite number >= 0; got {value!r}.")

    def first_byte_seconds(self, source: random.Random) -> float:
        """Returns a random time to the first byte, in seconds, with the mean `mean_seconds`."""
        if not self.mean_seconds or not self.sigma:
            return self.mean_seconds
        # The mean of a log-normal is exp(mu + sigma^2 / 2).
        return source.lognormvariate(math.log(self.mean_seconds) - self.sigma**2 / 2, self.sigma)

    def output_seconds(self, output_tokens: int) -> float:
        """Returns the time for `output_tokens`, in seconds."""
        return self.per_output_token_seconds * output_tokens
