"""What can be known of a quota: values, each of which may be missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_provider_llmbeam.probe.prober import Probe

#: `tokens` are input and output together.
Unit = Literal["requests", "tokens", "input_tokens", "output_tokens"]

#: What stands behind a model, and so what is evidence.
Situation = Literal["shared_pool", "published_quota", "unpublished_quota", "own_endpoint", "accelerators"]

#: Name of an `Allowance` that the job's user states.
STATED = "limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a project asked of a model lately, whoever it was.

    Attributes:
        invocations: Requests, those that were rejected included.
        rejected: Of these, came back as 429 or for want of capacity.
        failed: Of these, came back as another 5xx.
        peak_requests_per_minute: Let through in the busiest minute.
        peak_tokens_per_minute: Input and output in the busiest minute; `None` where that was not read.
        first_token_seconds: 95th percentile of the time to the first token; `None` where there is none.
        usual_first_token_seconds: The same, over the day before.
        until: End of the newest minute that is known, seconds of the Unix epoch.
    """

    invocations: int
    rejected: int = 0
    failed: int = 0
    peak_requests_per_minute: float = 0.0
    peak_tokens_per_minute: float | None = None
    first_token_seconds: float | None = None
    usual_first_token_seconds: float | None = None
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """One limit per minute, and what is used of it.

    Attributes:
        name: Its metric, or `STATED`.
        unit: What it counts.
        limit: Per minute.
        used: In the busiest minute lately; `None` where that is not known.
        exceeded: Requests that were rejected for it lately.
        until: End of the newest minute of `used`, seconds of the Unix epoch.
    """

    name: str
    unit: Unit
    limit: float
    used: float | None = None
    exceeded: int = 0
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedicated:
    """Provisioned Throughput.

    Attributes:
        limit_tokens_per_second: Bought.
        used_tokens_per_second: In the busiest minute lately; `None` where that is not known.
        spilled_tokens: Answered from the shared pool instead lately, at its price.
        until: End of the newest minute, seconds of the Unix epoch.
    """

    limit_tokens_per_second: float
    used_tokens_per_second: float | None = None
    spilled_tokens: float = 0.0
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """An endpoint of one's own.

    Attributes:
        replicas: That are up; `None` where that is not known.
        target_replicas: That there should be.
        responses: Lately.
        rejected: Of these, 429, as far as the metric tells: mostly it says 4xx.
        failed: Of these, 5xx.
        duty_cycle: Share of the time that its accelerators work, 0 to 1.
        until: End of the newest minute, seconds of the Unix epoch.
    """

    replicas: float | None = None
    target_replicas: float | None = None
    responses: int = 0
    rejected: int = 0
    failed: int = 0
    duty_cycle: float | None = None
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """The quota for accelerators of one kind in one location.

    Attributes:
        name: Its metric.
        limit: `None` where nothing tells.
        used: `None` where nothing tells.
        wanted: By the endpoint that is to come.
        until: When `used` was measured, seconds of the Unix epoch; up to a day ago.
    """

    name: str
    limit: float | None
    used: float | None = None
    wanted: int = 1
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of one model, or one endpoint, in one location.

    Attributes:
        situation: What stands behind it.
        what: In words, e.g. "gemini-2.5-flash in 'global'".
        location: Google Cloud's; empty where there is none.
        traffic: `None`: none was seen.
        allowances: Limits per minute that are published or stated.
        dedicated: `None`: none was bought, or nothing tells.
        serving: `None`: nothing tells.
        accelerators: `None`: none are asked for.
        probe: `None`: none was sent.
        unreadable: Why something could not be read, in sentences.
    """

    situation: Situation
    what: str
    location: str = ""
    traffic: Traffic | None = None
    allowances: tuple[Allowance, ...] = ()
    dedicated: Dedicated | None = None
    serving: Serving | None = None
    accelerators: Accelerators | None = None
    probe: Probe | None = None
    unreadable: tuple[str, ...] = ()

    def is_unread(self, part: object | None) -> bool:
        """Whether a part is missing because it could not be read, and not because there is nothing."""
        return part is None and bool(self.unreadable)
