"""Cases of servers that count tokens, requests or both, and of prompts whose lengths vary."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from airflow_provider_llmbeam.transport.server_reply import QuotaUnit
from bench.simulation.cases import Case
from bench.simulation.servers import ADVICE, Quota
from bench.simulation.simulator import Request

#: What the quota of a case counts, and its shape.
KINDS = (
    ("tokens", "bucket"),
    ("tokens", "sliding log"),
    ("tokens", "fixed window"),
    ("both", "bucket"),
    ("both", "sliding log"),
    ("both", "fixed window"),
    ("requests", "bucket"),
    ("requests", "small bucket"),
    ("requests", "sliding log"),
    ("requests", "fixed window"),
    ("requests", "pool"),
    ("requests", "no limit"),
)
SHORTEST_PROMPT, LONGEST_PROMPT = 20, 50_000
#: Mean tokens of a prompt and of an answer.
MEAN_INPUT = (LONGEST_PROMPT - SHORTEST_PROMPT) / math.log(LONGEST_PROMPT / SHORTEST_PROMPT)
MEAN_OUTPUT = 300.0
#: Number of rows that the engine plans together, the longest first.
BATCH_ROWS = 8192


class RequestsOnly(LearnedRate):
    """The law without lengths: a request is a request."""

    def admit(self, now: float, tokens: float, backlog: float = 0.0) -> float:
        """See `LearnedRate.admit`."""
        return super().admit(now, 1.0, backlog)

    def settle(self, reserved_tokens: float, used_tokens: float, *, is_answered: bool = False) -> None:
        """Does nothing."""

    def rejected(self, now: float, rejection: Rejection) -> float:
        """See `LearnedRate.rejected`."""
        return super().rejected(now, replace(rejection, tokens=0.0, unit=None))


@dataclass(frozen=True, kw_only=True)
class TokenCase(Case):
    """A server and prompts of 20 to 50,000 tokens.

    Attributes:
        counted: What the quotas count: `requests`, `tokens` or `both`.
        is_longest_first: Whether prompts are sent as the engine plans them, not in random order.
        tokens_ratio: Requests that the quota of tokens allows over those that the quota of requests allows.
    """

    counted: str
    is_longest_first: bool
    tokens_ratio: float

    @classmethod
    def draw(cls, seed: int) -> TokenCase:
        """Draws a case."""
        rng = random.Random(seed)
        counted, shape = KINDS[seed % len(KINDS)]
        rps = math.exp(rng.uniform(math.log(0.4), math.log(100.0)))
        latency = math.exp(rng.uniform(math.log(0.2), math.log(10.0)))
        seconds = rng.uniform(0.0, 2.0) if shape == "small bucket" else rng.uniform(2.0, 60.0)
        if shape in ("sliding log", "fixed window"):
            seconds = rng.choice([seconds, 1.0, 20.0, 60.0])
        if counted != "requests":
            # A server that admits such prompts at all has a quota of the longest one.
            seconds = max(seconds, 3.0 * LONGEST_PROMPT / MEAN_INPUT / rps)
        return cls(
            shape=shape,
            rps=rps,
            seconds=seconds,
            advice=rng.choice(list(ADVICE)),
            latency_seconds=latency,
            rejection_seconds=math.exp(rng.uniform(math.log(0.005), math.log(0.15))),
            rows=int(min(2_000, max(100, rps * rng.uniform(60.0, 300.0)))),
            slots=max(64, math.ceil(4 * rps * latency)),
            used=max(0.0, rng.uniform(-2.0, 1.0)),
            seed=seed,
            names_unit=rng.random() < 1 / 3,
            counted=counted,
            is_longest_first=rng.random() < 0.5,
            tokens_ratio=math.exp(rng.uniform(math.log(0.5), math.log(2.0))) if counted == "both" else 1.0,
        )

    @property
    def title(self) -> str:
        """See `Case`."""
        return f"{self.counted}, {self.shape}"

    def quotas(self) -> dict[QuotaUnit, Quota]:
        """See `Case`."""
        found: dict[QuotaUnit, Quota] = {}
        if self.counted != "tokens":
            found["requests"] = self.quota()
        if self.counted != "requests":
            found["tokens"] = self.quota(self.rps * self.tokens_ratio * (MEAN_INPUT + MEAN_OUTPUT))
        return found

    def requests(self) -> list[Request]:
        """See `Case`."""
        rng = random.Random(self.seed + 1)
        bounds = math.log(SHORTEST_PROMPT), math.log(LONGEST_PROMPT)
        found = [
            Request(int(math.exp(rng.uniform(*bounds))), int(MEAN_OUTPUT * rng.lognormvariate(-0.32, 0.8)))
            for _ in range(self.rows)
        ]
        if self.is_longest_first:
            parts = [found[at : at + BATCH_ROWS] for at in range(0, self.rows, BATCH_ROWS)]
            found = [each for part in parts for each in sorted(part, key=lambda request: -request.input_tokens)]
        return found

    def needed_seconds(self, quotas: Mapping[QuotaUnit, Quota]) -> float:
        """Returns the time of a client that knows the server, and sends each request as soon as it is admitted."""
        rates: dict[QuotaUnit, float] = {
            "requests": self.rps,
            "tokens": self.rps * self.tokens_ratio * (MEAN_INPUT + MEAN_OUTPUT),
        }
        now = 0.0
        answered: list[float] = []
        total: dict[QuotaUnit, float] = {"requests": 0.0, "tokens": 0.0}
        for request in self.requests():
            if len(answered) == self.slots:
                now = max(now, heapq.heappop(answered))
            amounts: dict[QuotaUnit, float] = {"requests": 1.0, "tokens": float(request.input_tokens)}
            while wait := max(quota.wait_seconds(now, amounts[unit]) for unit, quota in quotas.items()):
                now += wait + 1e-6
            for unit, quota in quotas.items():
                quota.take(now, amounts[unit])
                total[unit] += amounts[unit]
            if "tokens" in quotas:
                quotas["tokens"].take(now, request.output_tokens)
                total["tokens"] += request.output_tokens
            heapq.heappush(answered, now + self.latency_seconds)
        limited = [(total[u] - q.free_requests()) / rates[u] for u, q in quotas.items()]
        return max(now, *limited)
