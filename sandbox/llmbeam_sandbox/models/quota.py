"""Quotas of the emulated models. Pure: every decision takes `now`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

LimitName = Literal["requests-per-minute", "tokens-per-minute", "requests-per-day", "window", "usage-tier"]

DAY_SECONDS = 86_400.0
MAX_DAY_DELAY_SECONDS = 60.0
"""Longest delay of a per-day 429: the Gemini API names less than a minute, not the time to midnight.

Source: github.com/googleapis/python-genai/issues/2044 ("PerDay" violation beside "retryDelay": "47s").
"""
_ROUNDING = 1e-9

USAGE_TIERS: Mapping[str, Mapping[int, int]] = {
    "flash": {1: 2_000_000, 2: 4_000_000, 3: 10_000_000},
    "pro": {1: 500_000, 2: 1_000_000, 3: 2_000_000},
}
"""Tokens per minute that Standard PayGo serves first, by model family and usage tier.

Source: docs.cloud.google.com/gemini-enterprise-agent-platform/models/standard-paygo (2026-11)
"""
MOST_REQUESTS_PER_MINUTE = 30_000
"""Requests per minute to one model in one region, at any usage tier. Source: the same page."""


_TOKEN_LIMITS = frozenset[LimitName]({"tokens-per-minute", "usage-tier"})


@dataclass(frozen=True, kw_only=True)
class FixedWindow:
    """A number of requests per window; the first window opens with the first request.

    Attributes:
        requests: Requests admitted per window, >= 1.
        seconds: Length of a window, in seconds, > 0.
    """

    requests: int
    seconds: float

    def __post_init__(self) -> None:
        _check_at_least_one("requests", self.requests)
        if not self.seconds > 0:
            raise ValueError(f"`seconds` must be > 0; got {self.seconds!r}.")


@dataclass(frozen=True, kw_only=True)
class Quota:
    """Limits of each model; None means no limit.

    Attributes:
        requests_per_minute: Rate of a token bucket of requests, >= 1.
        tokens_per_minute: Rate of a token bucket of input and output tokens, >= 1. Input is charged on
            admission, output on completion, which may leave the bucket in debt.
        usage_tier: Usage tier of Vertex AI's Standard PayGo, 1 to 3, or a threshold in tokens per minute. Requests
            up to the threshold of a model are always admitted, if they are spread evenly, those above it while the
            pool has tokens for them; more than `burst_seconds` of both at once is a spike, and is rejected. At
            most 30,000 requests per minute.
        pool_tokens_per_minute: What the shared pool has for requests above the threshold at present, >= 0.
        requests_per_day: Requests per 24 h, counted from the first one, >= 1.
        window: Limit per fixed window, e.g. a hidden one of 100 requests per 20 s.
        burst_seconds: Capacity of the token buckets, in seconds of their rate; at least one
            request or token always fits.
        tells_retry_delay: Whether a 429 names the delay after which to retry.

    Raises:
        ValueError: A limit is below 1, or `burst_seconds` is not positive.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    usage_tier: int | None = None
    pool_tokens_per_minute: int = 0
    requests_per_day: int | None = None
    window: FixedWindow | None = None
    burst_seconds: float = 2.0
    tells_retry_delay: bool = True

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "requests_per_day", "usage_tier"):
            if getattr(self, name) is not None:
                _check_at_least_one(name, getattr(self, name))
        if self.pool_tokens_per_minute < 0:
            raise ValueError(f"`pool_tokens_per_minute` must be >= 0; got {self.pool_tokens_per_minute!r}.")
        if not self.burst_seconds > 0:
            raise ValueError(f"`burst_seconds` must be > 0; got {self.burst_seconds!r}.")


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """The limit that rejected a request.

    Attributes:
        limit_name: Limit with the longest delay.
        limit: Value of the limit, in requests or tokens.
        retry_delay_seconds: Delay that the 429 names, in seconds; None when it names none.
    """

    limit_name: LimitName
    limit: int
    retry_delay_seconds: float | None


class Meter(Protocol):
    """Counts one kind of usage against one limit."""

    def wait_seconds(self, now: float, amount: float) -> float:
        """Returns 0 if `amount` fits now, else the time until it does, in seconds."""

    def take(self, now: float, amount: float) -> None:
        """Counts `amount` as used."""


class TokenBucket:
    """Refills steadily; may go into debt, which delays later requests."""

    def __init__(self, *, per_minute: int, burst_seconds: float) -> None:
        self.per_second = per_minute / 60
        self.capacity = max(1.0, self.per_second * burst_seconds)
        self._level = self.capacity
        self._read_at: float | None = None

    def wait_seconds(self, now: float, amount: float) -> float:
        """Returns 0 if `amount` fits now, else the time until it does, in seconds.

        An amount over the capacity fits a full bucket: it could never be admitted otherwise.
        """
        self._refill(now)
        missing = min(amount, self.capacity) - self._level
        return missing / self.per_second if missing > _ROUNDING else 0.0

    def take(self, now: float, amount: float) -> None:
        """Counts `amount` as used, going into debt if necessary."""
        self._refill(now)
        self._level -= amount

    def used(self, now: float) -> float:
        """Returns what of the capacity is used."""
        self._refill(now)
        return self.capacity - self._level

    def _refill(self, now: float) -> None:
        elapsed = 0.0 if self._read_at is None else max(0.0, now - self._read_at)
        self._level = min(self.capacity, self._level + elapsed * self.per_second)
        self._read_at = now


class PrioritizedMeter:
    """Admits what is below a threshold, and what a pool has tokens for above it."""

    def __init__(self, threshold: int, pool: int, burst_seconds: float) -> None:
        rates = (threshold, pool) if pool else (threshold,)
        self._buckets = [TokenBucket(per_minute=rate, burst_seconds=burst_seconds) for rate in rates]

    def wait_seconds(self, now: float, amount: float) -> float:
        """Returns 0 if `amount` fits now, else the time until it does, in seconds."""
        return min(bucket.wait_seconds(now, amount) for bucket in self._buckets)

    def take(self, now: float, amount: float) -> None:
        """Counts `amount` as used, of the threshold first."""
        fitting = (bucket for bucket in self._buckets if not bucket.wait_seconds(now, amount))
        next(fitting, self._buckets[0]).take(now, amount)


class WindowCounter:
    """Counts per window of fixed length; the first window opens with the first request."""

    def __init__(self, window: FixedWindow) -> None:
        self._window = window
        self._opened_at: float | None = None
        self._used = 0.0

    def wait_seconds(self, now: float, amount: float) -> float:
        """Returns 0 if `amount` fits now, else the time until the next window, in seconds."""
        opened_at = self._roll(now)
        if self._used + amount <= self._window.requests:
            return 0.0
        return opened_at + self._window.seconds - now

    def take(self, now: float, amount: float) -> None:
        """Counts `amount` as used in the window that contains `now`."""
        self._roll(now)
        self._used += amount

    def _roll(self, now: float) -> float:
        opened_at = now if self._opened_at is None else self._opened_at
        passed = max(0.0, (now - opened_at) // self._window.seconds)
        if passed:
            self._used = 0.0
        self._opened_at = opened_at + passed * self._window.seconds
        return self._opened_at


class QuotaLedger:
    """The usage of each model under a quota.

    Args:
        quota: Limits of each model by itself, as of Google's per-base-model quotas.
    """

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self._meters: dict[str, dict[LimitName, Meter]] = {}

    def admit(self, now: float, tokens: int, model: str = "") -> Rejection | None:
        """Charges one request of `tokens` input tokens; a rejection, which is returned, costs nothing."""
        meters = self._of(model)
        amounts = {name: tokens if name in _TOKEN_LIMITS else 1 for name in meters}
        waits = {name: meter.wait_seconds(now, amounts[name]) for name, meter in meters.items()}
        if waits and max(waits.values()) > 0:
            return self._rejection(waits, model)
        for name, meter in meters.items():
            meter.take(now, amounts[name])
        return None

    def charge_output(self, now: float, tokens: int, model: str = "") -> None:
        """Charges the tokens of a completed answer."""
        for name, meter in self._of(model).items():
            if name in _TOKEN_LIMITS:
                meter.take(now, tokens)

    def stated(self, now: float, model: str) -> dict[str, tuple[int, int, float]]:
        """Returns the limits per minute that headers state: limit, what is left, and seconds until it is whole."""
        found = {}
        for name, meter in self._of(model).items():
            if name in ("requests-per-minute", "tokens-per-minute") and isinstance(meter, TokenBucket):
                limit, used = _limits(self.quota, model)[name], max(0.0, meter.used(now))
                found[name.partition("-")[0]] = (limit, max(0, int(limit - used)), used / meter.per_second)
        return found

    def _of(self, model: str) -> dict[LimitName, Meter]:
        if model not in self._meters:
            self._meters[model] = _meters(self.quota, model)
        return self._meters[model]

    def _rejection(self, waits: dict[LimitName, float], model: str) -> Rejection:
        name, wait = max(waits.items(), key=lambda item: item[1])
        delay = min(wait, MAX_DAY_DELAY_SECONDS) if name == "requests-per-day" else wait
        return Rejection(
            limit_name=name,
            limit=_limits(self.quota, model)[name],
            # A shared pool does not know.
            retry_delay_seconds=delay if self.quota.tells_retry_delay and name != "usage-tier" else None,
        )


class LocationQuotas:
    """The quota of each location and its usage.

    Args:
        quota: Quota of every location without one of its own, and of paths without a location ("").
        by_location: Quota by location.
    """

    def __init__(self, quota: Quota, by_location: Mapping[str, Quota]) -> None:
        self._changes: dict[str | None, list[tuple[float, Quota]]] = {None: [(float("-inf"), quota)]}
        self._changes |= {location: [(float("-inf"), own)] for location, own in by_location.items()}
        self._ledgers: dict[str, QuotaLedger] = {}

    @property
    def locations(self) -> frozenset[str]:
        """Locations with a quota of their own."""
        return frozenset(location for location in self._changes if location is not None)

    def ledger(self, location: str) -> QuotaLedger:
        """Returns the usage in a location."""
        ledger = self._ledgers.get(location)
        if ledger is None:
            ledger = self._ledgers[location] = QuotaLedger(self.at(float("inf"), location))
        return ledger

    def at(self, when: float, location: str | None = None) -> Quota:
        """Returns the quota of a location at a time.

        Args:
            when: Time, in seconds since the epoch; infinity is now.
            location: Location, e.g. "europe-west4"; None is every location without a quota of its own.
        """
        for changes in (self._changes.get(location, []), self._changes[None]):
            since = [quota for at, quota in changes if at <= when]
            if since:
                return since[-1]
        raise AssertionError("There is a quota from the start.")

    def change(self, now: float, quota: Quota, location: str | None = None) -> None:
        """Changes the quota from `now` on; nothing of the new quota is used yet.

        Args:
            now: Time of the change, in seconds since the epoch.
            quota: The new quota.
            location: Location; None is every location without a quota of its own.
        """
        self._changes.setdefault(location, []).append((now, quota))
        for known in list(self._ledgers):
            if known == location or (location is None and known not in self._changes):
                del self._ledgers[known]


def _limits(quota: Quota, model: str) -> dict[LimitName, int]:
    tier, requests = quota.usage_tier, quota.requests_per_minute
    thresholds = USAGE_TIERS["pro" if "-pro" in model else "flash"]
    if tier is not None:
        requests = min(MOST_REQUESTS_PER_MINUTE, requests or MOST_REQUESTS_PER_MINUTE)
    limits: dict[LimitName, int | None] = {
        "requests-per-minute": requests,
        "tokens-per-minute": quota.tokens_per_minute,
        "requests-per-day": quota.requests_per_day,
        "window": quota.window.requests if quota.window else None,
        "usage-tier": None if tier is None else thresholds.get(tier, tier),
    }
    return {name: limit for name, limit in limits.items() if limit is not None}


def _meters(quota: Quota, model: str) -> dict[LimitName, Meter]:
    meters: dict[LimitName, Meter] = {}
    for name, limit in _limits(quota, model).items():
        if name == "requests-per-day":
            meters[name] = WindowCounter(FixedWindow(requests=limit, seconds=DAY_SECONDS))
        elif name == "window" and quota.window is not None:
            meters[name] = WindowCounter(quota.window)
        elif name == "usage-tier":
            meters[name] = PrioritizedMeter(limit, quota.pool_tokens_per_minute, quota.burst_seconds)
        else:
            meters[name] = TokenBucket(per_minute=limit, burst_seconds=quota.burst_seconds)
    return meters


def _check_at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"`{name}` must be >= 1; got {value!r}. None lifts the limit.")
