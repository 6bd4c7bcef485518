"""Evidence of free quota: values, each of which may be missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_provider_llmbeam.hooks.probe import Probe

#: `tokens` are input and output together.
Unit = Literal["requests", "tokens", "input_tokens", "output_tokens"]

#: What serves a model, which decides what counts as evidence.
Situation = Literal["shared_pool", "published_quota", "unpublished_quota", "own_endpoint", "accelerators"]

#: Names of an `Allowance` that the user states in `limits`, and of one that the server states in its replies.
STATED, SERVER = "limits", "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests of a project to a model in the window, by any user.

    Attributes:
        invocations: Number of requests, including rejected ones.
        rejected: Number of them that were rejected with a 429, or for lack of capacity.
        failed: Number of them with another 5xx.
        peak_requests_per_minute: Requests admitted in the busiest minute.
        peak_tokens_per_minute: Input and output tokens in the busiest minute; `None` if not read.
        first_token_seconds: 95th percentile of the time to the first token; `None` if not known.
        usual_first_token_seconds: The same percentile over the day before.
        until: End of the newest minute with data, in seconds of the Unix epoch.
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
    """One limit per minute, and its usage.

    Attributes:
        name: Metric of the quota, `STATED` or `SERVER`.
        unit: Unit that the limit counts.
        limit: Limit per minute.
        used: Usage in the busiest minute of the window; `None` if not known.
        exceeded: Number of requests in the window that were rejected for this limit.
        until: End of the newest minute of `used`, in seconds of the Unix epoch.
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
        limit_tokens_per_second: Purchased throughput.
        used_tokens_per_second: Usage in the busiest minute of the window; `None` if not known.
        spilled_tokens: Tokens in the window that spilled over to the shared pool, at its price.
        until: End of the newest minute with data, in seconds of the Unix epoch.
    """

    limit_tokens_per_second: float
    used_tokens_per_second: float | None = None
    spilled_tokens: float = 0.0
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """An endpoint of the project.

    Attributes:
        replicas: Number of running replicas; `None` if not known.
        target_replicas: Number of replicas that the autoscaler wants; `None` if not known.
        responses: Number of responses in the window.
        refused: Number of them with a 4xx. The metric has classes of codes only
            (docs.cloud.google.com/monitoring/api/metrics_gcp, `response_count`): a 429 is not told from another.
        failed: Number of them with a 5xx.
        duty_cycle: Share of time in which the accelerators work, 0 to 1; `None` if not known.
        waiting: Number of requests in the queues of vLLM; `None` if not known.
        until: End of the newest minute with data, in seconds of the Unix epoch.
    """

    replicas: float | None = None
    target_replicas: float | None = None
    responses: int = 0
    refused: int = 0
    failed: int = 0
    duty_cycle: float | None = None
    waiting: float | None = None
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerQueue:
    """State of a vLLM server at this moment.

    Attributes:
        waiting: Number of requests in its queue.
        cache_ratio: Share of its KV cache that is in use, 0 to 1; `None` if not known.
    """

    waiting: float
    cache_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """The quota for accelerators of one kind in one location.

    Attributes:
        name: Metric of the quota.
        limit: Number of accelerators; `None` if not known.
        used: Number of accelerators in use; `None` if not known.
        wanted: Number of accelerators that the planned endpoint needs.
        until: Time at which `used` was measured, in seconds of the Unix epoch; up to a day ago.
    """

    name: str
    limit: float | None
    used: float | None = None
    wanted: int = 1
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All evidence of one model, or of one planned endpoint, in one location.

    Attributes:
        situation: Kind of service that serves the model.
        what: Description for messages, e.g. "gemini-3.5-flash-lite in 'global'".
        location: Google Cloud location; empty if there is none.
        traffic: Recent requests; `None` if there are none, or they could not be read.
        allowances: Published or stated limits per minute.
        dedicated: Provisioned Throughput; `None` if none was purchased, or it could not be read.
        serving: State of the endpoint; `None` if it could not be read.
        queue: Queue of a vLLM server; `None` if it was not asked, or shows none.
        accelerators: Accelerator quota; `None` for a model.
        probe: Replies to probe requests; `None` if none was sent.
        unreadable: Sentences that say why evidence could not be read.
    """

    situation: Situation
    what: str
    location: str = ""
    traffic: Traffic | None = None
    allowances: tuple[Allowance, ...] = ()
    dedicated: Dedicated | None = None
    serving: Serving | None = None
    queue: ServerQueue | None = None
    accelerators: Accelerators | None = None
    probe: Probe | None = None
    unreadable: tuple[str, ...] = ()

    def is_unread(self, part: object | None) -> bool:
        """Whether a part is missing because it could not be read, and not because it does not exist."""
        return part is None and bool(self.unreadable)
