"""Defines the jobs: rows, server, limits known to the client, and targets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.rows import RowKind


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Behaviour of the emulated model server.

    Attributes:
        latency_seconds: Mean time to an answer, in seconds.
        latency_sigma: Sigma of the log-normal distribution of that time; with 0 each answer takes the mean.
        requests_per_minute: Request rate of a hard token bucket.
        burst_seconds: Content of the full bucket, in seconds of its rate.
        pool_requests_per_minute: Mean capacity of a pool that others use as well: it wanders by about 12 % every
            five seconds, and what exceeds it is refused by chance.
        tokens_per_minute: Rate of input and output tokens of another such bucket.
        window_requests: Number of requests admitted per fixed window.
        window_seconds: Length of the fixed window, in seconds.
        step_shares: Consecutive shares of `requests_per_minute` that are available; the last one stays in effect.
        step_seconds: Length of a step, in seconds, counted from the first request.
    """

    latency_seconds: float = 0.05
    latency_sigma: float = 0.0
    requests_per_minute: int | None = None
    burst_seconds: float = 2.0
    pool_requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    window_requests: int | None = None
    window_seconds: float = 20.0
    step_shares: tuple[float, ...] = ()
    step_seconds: float = 20.0

    def available_requests(self, seconds: float) -> float:
        """Returns the number of requests that the quota refills in the `seconds` after the first request.

        Raises:
            ValueError: The server has no `requests_per_minute`.
        """
        if self.requests_per_minute is None:
            raise ValueError("`available_requests` requires a server with `requests_per_minute`.")
        shares, passed, total = self.step_shares or (1.0,), 0.0, 0.0
        for number, share in enumerate(shares):
            is_last = number == len(shares) - 1
            span = seconds - passed if is_last else min(self.step_seconds, seconds - passed)
            total += share * max(0.0, span)
            passed += self.step_seconds
        return total * self.requests_per_minute / 60


@dataclass(frozen=True, kw_only=True)
class KnownLimits:
    """Limits that the client is configured with.

    Attributes:
        requests_per_minute: Request quota of the server; `None` if the client does not know it.
        tokens_per_minute: Token quota of the server; `None` if the client does not know it.
        max_in_flight: Maximum number of concurrent requests per process.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_in_flight: int = 64


@dataclass(frozen=True, kw_only=True)
class Target:
    """A bound on one figure.

    Attributes:
        figure: Name of the figure in a measurement.
        at_most: Upper bound, inclusive.
        at_least: Lower bound, inclusive.
        full_size_only: Whether to skip it with `--quick`, where start-up, discovery and the last batch dominate.
    """

    figure: str
    at_most: float | None = None
    at_least: float | None = None
    full_size_only: bool = False

    def is_reached(self, value: float) -> bool:
        """Returns whether a value is within the bounds."""
        return (self.at_most is None or value <= self.at_most) and (
            self.at_least is None or value >= self.at_least
        )

    def __str__(self) -> str:
        sign, bound = ("≤", self.at_most) if self.at_most is not None else ("≥", self.at_least)
        return f"{self.figure} {sign} {bound:g}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job of the benchmark.

    Attributes:
        letter: Name of the job on the command line.
        title: One-line description.
        headline: Name of the figure that is compared and plotted.
        is_lower_better: Whether a lower value of the headline figure is better.
        columns: Names of the figures in the table, the headline figure first.
        rows: Number of rows.
        row_kind: Kind of the rows.
        server: Model server; `None` for a static-batch server inside the contender.
        known_limits: Limits that the client is configured with.
        processes: Numbers of worker processes that share the rows; each number is a separate case.
        targets: Targets that our engine must reach.
        is_killed: Whether it is killed with SIGKILL when half of the rows are answered, and then run twice more.
        padded_tokens_per_second: Throughput of the static-batch server; `None` for other jobs.
        max_padded_tokens: Maximum number of padded tokens in a batch of that server; `None` for other jobs.
        time_limit_seconds: Time limit of one run, in seconds.
        is_quick: Whether this is the smaller version for `--quick`.
    """

    letter: str
    title: str
    headline: str
    is_lower_better: bool
    columns: tuple[str, ...]
    rows: int
    row_kind: RowKind = "short"
    server: ServerSettings | None = ServerSettings()
    known_limits: KnownLimits = KnownLimits()
    processes: tuple[int, ...] = (1,)
    targets: tuple[Target, ...]
    is_killed: bool = False
    padded_tokens_per_second: int | None = None
    max_padded_tokens: int | None = None
    time_limit_seconds: float = 240.0
    is_quick: bool = False

    @property
    def checked_targets(self) -> tuple[Target, ...]:
        """Targets that apply to this size of the job."""
        return tuple(target for target in self.targets if not (self.is_quick and target.full_size_only))


#: Target of every job: no row is lost.
NONE_LOST = Target(figure="lost", at_most=0)
#: Length of a step, in seconds: long compared with a client's reaction time, and short enough to repeat a run.
STEP_SECONDS = 20.0
STEP_SHARES = (1.0, 0.5, 0.75, 0.4, 1.0)

JOBS = (
    Job(
        letter="A",
        title="200 rows, 50 of them duplicates",
        headline="requests_per_prompt",
        is_lower_better=True,
        columns=("requests_per_prompt", "requests", "paid_twice", "lost", "wall_seconds"),
        rows=200,
        row_kind="duplicates",
        known_limits=KnownLimits(max_in_flight=32),
        targets=(Target(figure="requests_per_prompt", at_most=1), NONE_LOST),
    ),
    Job(
        letter="B",
        title="250 rows, a limit of 100 requests per 20 s that the client does not know",
        headline="requests_per_row",
        is_lower_better=True,
        columns=("requests_per_row", "rejected", "lost", "paid_twice", "wall_seconds"),
        rows=250,
        server=ServerSettings(window_requests=100),
        known_limits=KnownLimits(max_in_flight=32),
        processes=(1, 2),
        targets=(Target(figure="requests_per_row", at_most=1.04, full_size_only=True), NONE_LOST),
    ),
    Job(
        letter="C",
        title="400 rows, kill -9 half-way, run again, and run once more",
        headline="paid_again_ratio",
        is_lower_better=True,
        columns=("paid_again_ratio", "paid_twice", "paid_twice_per_in_flight", "requests_next_run", "lost"),
        rows=400,
        known_limits=KnownLimits(max_in_flight=32),
        targets=(
            Target(figure="paid_twice_per_in_flight", at_most=1),
            Target(figure="requests_next_run", at_most=0),
            NONE_LOST,
        ),
        is_killed=True,
    ),
    Job(
        letter="D",
        title="3,000 rows, 200 ms latency, 128 in flight (at most 640 rows/s)",
        headline="latency_limit_ratio",
        is_lower_better=False,
        columns=(
            "latency_limit_ratio",
            "rows_per_second_sending",
            "rows_per_second",
            "lost",
            "client_cpu_seconds",
        ),
        rows=3000,
        server=ServerSettings(latency_seconds=0.2),
        known_limits=KnownLimits(requests_per_minute=60_000, max_in_flight=128),
        targets=(
            Target(figure="latency_limit_ratio", at_least=0.9, full_size_only=True),
            NONE_LOST,
        ),
    ),
    Job(
        letter="E",
        title="1,200 rows, a known quota of 2,400 requests per minute",
        headline="utilisation",
        is_lower_better=False,
        columns=("utilisation", "rejected_ratio", "rejected", "lost", "sending_seconds"),
        rows=1200,
        server=ServerSettings(latency_seconds=0.2, latency_sigma=0.3, requests_per_minute=2400),
        known_limits=KnownLimits(requests_per_minute=2400),
        processes=(1, 2, 4),
        targets=(
            Target(figure="utilisation", at_least=0.97),
            Target(figure="rejected_ratio", at_most=0.01),
            NONE_LOST,
        ),
    ),
    Job(
        letter="F",
        title="1,200 heavy-tailed rows, a known quota of 1.2 million tokens per minute",
        headline="utilisation",
        is_lower_better=False,
        columns=("utilisation", "rejected_ratio", "rejected", "lost", "sending_seconds"),
        rows=1200,
        row_kind="heavy-tailed",
        server=ServerSettings(latency_seconds=0.2, latency_sigma=0.3, tokens_per_minute=1_200_000),
        known_limits=KnownLimits(tokens_per_minute=1_200_000),
        processes=(1, 2, 4),
        targets=(
            Target(figure="utilisation", at_least=0.97),
            Target(figure="rejected_ratio", at_most=0.01),
            NONE_LOST,
        ),
    ),
    Job(
        letter="G",
        title="10,000 ShareGPT-like prompts, a server that pads each batch to its longest",
        headline="makespan_ratio",
        is_lower_better=True,
        columns=("makespan_ratio", "padding_ratio", "sending_seconds", "lost"),
        rows=10_000,
        row_kind="sharegpt",
        server=None,
        targets=(
            Target(figure="padding_ratio", at_most=0.03, full_size_only=True),
            Target(figure="makespan_ratio", at_most=1.1),
            NONE_LOST,
        ),
        padded_tokens_per_second=160_000,
        # The tokens of 32 prompts of twice the mean length, as in the padding study that the design cites.
        max_padded_tokens=32 * 161 * 2,
    ),
    Job(
        letter="H",
        title="a quota of 3,000 requests per minute that steps 100/50/75/40/100 % every 20 s",
        headline="utilisation",
        is_lower_better=False,
        columns=("utilisation", "rejected_ratio", "rejected", "lost", "sending_seconds"),
        rows=int(3000 / 60 * STEP_SECONDS * sum(STEP_SHARES)),
        server=ServerSettings(
            latency_seconds=0.2,
            latency_sigma=0.3,
            requests_per_minute=3000,
            step_shares=STEP_SHARES,
            step_seconds=STEP_SECONDS,
        ),
        known_limits=KnownLimits(requests_per_minute=3000),
        targets=(
            Target(figure="utilisation", at_least=0.92, full_size_only=True),
            Target(figure="rejected_ratio", at_most=0.02, full_size_only=True),
            NONE_LOST,
        ),
    ),
    Job(
        letter="I",
        title="250 rows, a bucket of 300 requests per minute that holds 100, which the client does not know",
        headline="requests_per_row",
        is_lower_better=True,
        columns=("requests_per_row", "rejected", "lost", "sending_seconds"),
        rows=250,
        server=ServerSettings(requests_per_minute=300, burst_seconds=20.0),
        known_limits=KnownLimits(max_in_flight=32),
        targets=(
            Target(figure="rejected", at_most=8),
            # The bucket refills what it does not hold in 30 s.
            Target(figure="sending_seconds", at_most=1.25 * 30, full_size_only=True),
            NONE_LOST,
        ),
    ),
    Job(
        letter="J",
        title="2,400 rows, a pool of about 2,400 requests per minute whose capacity wanders, unknown",
        headline="utilisation",
        is_lower_better=False,
        columns=("utilisation", "rejected_ratio", "rejected", "lost", "sending_seconds"),
        rows=2400,
        server=ServerSettings(latency_seconds=0.2, latency_sigma=0.3, pool_requests_per_minute=2400),
        targets=(
            Target(figure="utilisation", at_least=0.85, full_size_only=True),
            Target(figure="rejected_ratio", at_most=0.05),
            NONE_LOST,
        ),
    ),
)


def quick(job: Job) -> Job:
    """Returns a version of the job that takes a quarter of the time or less, with less precise figures."""
    server, scale = job.server, 4
    if server is not None and server.window_requests:
        # The ratio of rows to windows stays the same: two and a half windows.
        server = replace(server, window_requests=server.window_requests // scale, window_seconds=5.0)
    if server is not None and server.step_shares:
        server = replace(server, step_seconds=server.step_seconds / scale)
    title = f"a quarter of: {job.title}"
    return replace(job, title=title, rows=job.rows // scale, server=server, is_quick=True)
