"""The jobs: rows, server, settings known to the client, and targets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.rows import RowKind


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Behaviour of the emulated model server.

    Attributes:
        latency_seconds: Mean time to an answer, in seconds.
        latency_sigma: Sigma of its log-normal distribution; with 0 each answer takes the mean.
        requests_per_minute: Rate of a hard token bucket that holds two seconds' worth.
        tokens_per_minute: Likewise, for input and output tokens.
        window_requests: Requests admitted per fixed window.
        window_seconds: Length of that window, in seconds.
        step_shares: Consecutive shares of `requests_per_minute` that are available; the last one remains.
        step_seconds: Length of a step, in seconds, counted from the first request.
    """

    latency_seconds: float = 0.05
    latency_sigma: float = 0.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    window_requests: int | None = None
    window_seconds: float = 20.0
    step_shares: tuple[float, ...] = ()
    step_seconds: float = 20.0

    def available_requests(self, seconds: float) -> float:
        """Returns how many requests the quota refills in the `seconds` after the first request.

        Raises:
            ValueError: There is no `requests_per_minute`.
        """
        if self.requests_per_minute is None:
            raise ValueError("`available_requests` needs a server with `requests_per_minute`.")
        shares, passed, total = self.step_shares or (1.0,), 0.0, 0.0
        for number, share in enumerate(shares):
            is_last = number == len(shares) - 1
            span = seconds - passed if is_last else min(self.step_seconds, seconds - passed)
            total += share * max(0.0, span)
            passed += self.step_seconds
        return total * self.requests_per_minute / 60


@dataclass(frozen=True, kw_only=True)
class Told:
    """Settings of the server that the client knows; `None` for those it does not."""

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
        full_size_only: Whether it is skipped with `--quick`, as start-up, discovery and the last batch dominate.
    """

    figure: str
    at_most: float | None = None
    at_least: float | None = None
    full_size_only: bool = False

    def is_reached(self, value: float) -> bool:
        """Compares a value with the bounds."""
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
        headline: The figure that is compared and drawn.
        is_lower_better: Whether a lower headline is better.
        columns: Figures in the table, the headline first.
        rows: Number of rows.
        row_kind: Kind of the rows.
        server: Model server; `None` for a static-batch server inside the contender.
        told: Settings of the server that the client knows.
        processes: Numbers of worker processes that share the rows; each is one case.
        targets: Targets that our engine must reach.
        is_killed: Whether it is killed with SIGKILL when half of the rows are answered, and then run twice more.
        padded_tokens_per_second: Throughput of the static-batch server.
        max_padded_tokens: Maximum number of padded tokens in one of its batches.
        time_limit_seconds: Time limit of one run, in seconds.
        is_quick: Whether it is the smaller version for `--quick`.
    """

    letter: str
    title: str
    headline: str
    is_lower_better: bool
    columns: tuple[str, ...]
    rows: int
    row_kind: RowKind = "short"
    server: ServerSettings | None = ServerSettings()
    told: Told = Told()
    processes: tuple[int, ...] = (1,)
    targets: tuple[Target, ...]
    is_killed: bool = False
    padded_tokens_per_second: int | None = None
    max_padded_tokens: int | None = None
    time_limit_seconds: float = 240.0
    is_quick: bool = False

    @property
    def checked_targets(self) -> tuple[Target, ...]:
        """The targets that apply at this size."""
        return tuple(target for target in self.targets if not (self.is_quick and target.full_size_only))


#: No job may lose a row.
NONE_LOST = Target(figure="lost", at_most=0)
#: A step must be long compared with a client's reaction time, and a run short enough to be repeated.
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
        told=Told(max_in_flight=32),
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
        told=Told(max_in_flight=32),
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
        told=Told(max_in_flight=32),
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
        headline="rows_per_second",
        is_lower_better=False,
        columns=(
            "rows_per_second",
            "rows_per_second_sending",
            "latency_limit_ratio",
            "lost",
            "client_cpu_seconds",
        ),
        rows=3000,
        server=ServerSettings(latency_seconds=0.2),
        told=Told(requests_per_minute=60_000, max_in_flight=128),
        targets=(
            Target(figure="latency_limit_ratio", at_least=0.9, full_size_only=True),
            Target(figure="rows_per_second", at_least=450, full_size_only=True),
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
        told=Told(requests_per_minute=2400),
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
        told=Told(tokens_per_minute=1_200_000),
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
        # 32 prompts of twice the mean length, as in the padding study that the design cites.
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
        told=Told(requests_per_minute=3000),
        targets=(
            Target(figure="utilisation", at_least=0.92, full_size_only=True),
            Target(figure="rejected_ratio", at_most=0.02, full_size_only=True),
            NONE_LOST,
        ),
    ),
)


def quick(job: Job) -> Job:
    """Returns a version that takes a quarter of the time or less, with less precise figures."""
    server, scale = job.server, 4
    if server is not None and server.window_requests:
        # The same proportion: two and a half windows.
        server = replace(server, window_requests=server.window_requests // scale, window_seconds=5.0)
    if server is not None and server.step_shares:
        server = replace(server, step_seconds=server.step_seconds / scale)
    title = f"¼ of: {job.title}"
    return replace(job, title=title, rows=job.rows // scale, server=server, is_quick=True)
