"""Clients and a server as a simulation of discrete events."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from llmbeam_sandbox.core.records import RequestRecord
from llmbeam_sandbox.models.answers import answer_text, count_tokens
from llmbeam_sandbox.models.quota import Quota, QuotaLedger

from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.pacing.gate import Admission, Gate
from airflow_provider_llmbeam.engine.retry import LONGEST_ADVISED_SECONDS
from airflow_provider_llmbeam.pipeline.pacing.machine_governor import governor_of
from airflow_provider_llmbeam.spec.limits import Limits
from bench.jobs import Job
from bench.measure import TOO_MANY_REQUESTS
from bench.rows import make_rows
from bench.server import ledger_of
from bench.simulation import servers

#: Time until a 429 arrives, in seconds: over the internet, and from the benchmark's server.
REJECTION_SECONDS, LOCAL_REJECTION_SECONDS = 0.05, 0.005


@dataclass(frozen=True, kw_only=True)
class SimulationResult:
    """Result of a simulation.

    Attributes:
        utilisation_ratio: Admitted requests over the requests that the quota allows, after the warm-up.
        rejected_ratio: 429s over all requests, after the warm-up.
        jain: Jain's fairness index of the machines; 1 means equal shares.
    """

    utilisation_ratio: float
    rejected_ratio: float
    jain: float


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one row, with the properties that the governor uses."""

    input_tokens: int = 1
    output_tokens: int = 0


class Rejection(Protocol):
    """A 429."""

    @property
    def retry_delay_seconds(self) -> float | None:
        """Retry delay of the server, or `None`."""


class Server(Protocol):
    """Admits requests, or rejects them."""

    def admit(self, now: float, tokens: int) -> Rejection | None:
        """Counts a request of `tokens` input tokens, or rejects it."""

    def charge_output(self, now: float, tokens: int) -> None:
        """Charges the tokens of a completed answer."""


class Client:
    """A process that sends requests, with slots for requests in flight.

    Args:
        governor: Governor of this process, or one that several processes share.
        work: Requests in order; the iterator may be infinite.
        slots: Maximum number of requests in flight.
        backlog: Number of requests of a batch.
        has_quota: Whether the governor was told the quota.
    """

    def __init__(
        self,
        governor: Admission,
        work: Iterator[Request],
        slots: int,
        backlog: int = 1000,
        *,
        has_quota: bool = False,
    ) -> None:
        self.governor = governor
        self.free = slots
        self.backlog = backlog
        self.wakes_at = float("-inf")
        self.records: list[RequestRecord] = []
        self.buckets = LengthBuckets((128, 512, 2048, 8192), 1024, is_guessed=has_quota)
        self._work = work
        self._waiting: deque[Request] = deque()

    def next_request(self) -> Request | None:
        """Returns the next request without removing it; rejected requests come first."""
        if not self._waiting and (request := next(self._work, None)):
            self._waiting.append(request)
        return self._waiting[0] if self._waiting else None

    def take(self) -> None:
        """Removes the next request."""
        self._waiting.popleft()

    def put_back(self, request: Request) -> None:
        """Inserts a rejected request as the next one."""
        self._waiting.appendleft(request)


class Simulation:
    """Discrete-event simulation of clients that use one ledger.

    Args:
        ledger: Ledger of the server.
        clients: Clients, which share nothing except their governors.
        latency: Function that draws the time to an answer, in seconds.
        rejection_seconds: Time until a 429 arrives, in seconds.
        seed: Seed of all random numbers.
    """

    def __init__(
        self,
        ledger: Server,
        clients: Sequence[Client],
        latency: Callable[[random.Random], float],
        *,
        rejection_seconds: float = REJECTION_SECONDS,
        seed: int = 0,
    ) -> None:
        self._ledger = ledger
        self._latency = latency
        self._rejection_seconds = rejection_seconds
        self._rng = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._sequence = itertools.count()
        for client in clients:
            self._at(self._rng.uniform(0, 2) if len(clients) > 1 else 0.0, self._sender(client))

    def run(self, seconds: float) -> None:
        """Runs until there are no more events, or for `seconds`."""
        while self._events and self._events[0][0] <= seconds:
            now, _, action = heapq.heappop(self._events)
            action(now)

    def _at(self, time: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._sequence), action))

    def _sender(self, client: Client) -> Callable[[float], None]:
        def send_admitted(now: float) -> None:
            while client.free and (request := client.next_request()):
                reserved = client.buckets.reserved_tokens((request.input_tokens,))
                if (wait := client.governor.admit(now, reserved, client.backlog)) > 0:
                    wakes_at = now + min(wait, Gate.LONGEST_WAIT_SECONDS)
                    if wakes_at < client.wakes_at or client.wakes_at <= now:
                        client.wakes_at = wakes_at
                        self._at(wakes_at, send_admitted)
                    return
                client.free -= 1
                client.take()
                self._send(now, client, request, reserved)

        return send_admitted

    def _send(self, now: float, client: Client, request: Request, reserved: float) -> None:
        rejection = self._ledger.admit(now, request.input_tokens)
        latency = self._rejection_seconds if rejection else self._latency(self._rng)
        client.records.append(
            RequestRecord(
                method="gemini.generateContent",
                http_status=TOO_MANY_REQUESTS if rejection else 200,
                input_tokens=0 if rejection else request.input_tokens,
                output_tokens=0 if rejection else request.output_tokens,
                received_at=now,
                answered_at=now + latency,
                is_billed=not rejection,
            )
        )

        def resend(at: float) -> None:
            client.free += 1
            client.put_back(request)
            self._sender(client)(at)

        def complete(answered_at: float) -> None:
            if rejection is None:
                client.free += 1
                self._ledger.charge_output(answered_at, request.output_tokens)
                client.buckets.learn(request.input_tokens, request.output_tokens)
                used = request.input_tokens + request.output_tokens
                client.governor.settle(reserved, used, is_answered=True)
            else:
                client.governor.settle(reserved, 0)
                advice = rejection.retry_delay_seconds
                unit = rejection.unit if isinstance(rejection, servers.Rejection) else None
                client.governor.rejected(answered_at, advice, self._rng.random(), now, reserved, unit)
                # As in the engine, the request waits as it was told, and keeps its slot.
                self._at(answered_at + min(LONGEST_ADVISED_SECONDS, advice or 0.0), resend)
            self._sender(client)(answered_at)

        self._at(now + latency, complete)


def simulate(
    make_governor: Callable[[], Admission],
    *,
    machines: int,
    requests_per_minute: float,
    seconds: float = 3600,
    warm_up_seconds: float = 300,
    latency_seconds: float = 2.7,
    seed: int = 0,
) -> SimulationResult:
    """Simulates machines with infinite work that share one quota and do not communicate."""
    ledger = QuotaLedger(Quota(requests_per_minute=int(requests_per_minute)))
    slots = max(2, int(3 * requests_per_minute / 60 * latency_seconds / machines))
    clients = [Client(make_governor(), itertools.repeat(Request()), slots) for _ in range(machines)]

    def latency(rng: random.Random) -> float:
        return latency_seconds * rng.lognormvariate(-0.32, 0.8)

    Simulation(ledger, clients, latency, seed=seed).run(seconds)
    return result_of(clients, (seconds - warm_up_seconds) * requests_per_minute / 60, warm_up_seconds)


def result_of(clients: Sequence[Client], allowed: float, warm_up_seconds: float = 0.0) -> SimulationResult:
    """Returns what machines have got of so many requests that the quota allowed after the warm-up."""
    counted = [[r.is_billed for r in client.records if r.received_at >= warm_up_seconds] for client in clients]
    admitted = [sum(billed) for billed in counted]
    total, requests = sum(admitted), sum(map(len, counted))
    squares = sum(count * count for count in admitted)
    return SimulationResult(
        utilisation_ratio=total / allowed,
        rejected_ratio=(requests - total) / max(1, requests),
        jain=total * total / (len(clients) * squares) if squares else 0.0,
    )


def simulate_job(
    job: Job,
    *,
    processes: int = 1,
    machines: int = 1,
    rejection_seconds: float = LOCAL_REJECTION_SECONDS,
    seed: int = 0,
) -> list[RequestRecord]:
    """Simulates a job of the benchmark.

    Args:
        job: Job that has a server.
        processes: Number of processes per machine, which share a governor and the rows of the machine.
        machines: Number of machines, which do not communicate.
        rejection_seconds: Time until a 429 arrives, in seconds.
        seed: Seed of all random numbers.

    Returns:
        The records that the server would have logged, in order of arrival.

    Raises:
        ValueError: The job has no server.
    """
    if job.server is None:
        raise ValueError(f"Job {job.letter} has no server.")
    server, limits = job.server, job.known_limits
    texts = [row["text"] for row in make_rows(job.row_kind, job.rows)]
    work = [
        Request(count_tokens(text), answer_text(text, model="gemini-2.5-flash").output_tokens) for text in texts
    ]
    has_quota = limits.requests_per_minute is not None or limits.tokens_per_minute is not None
    clients = []
    for machine in range(machines):
        governor = governor_of(
            Limits(
                requests_per_minute=limits.requests_per_minute,
                tokens_per_minute=limits.tokens_per_minute,
                expected_workers=machines,
            )
        )
        for process in range(processes):
            part = work[machine * processes + process :: machines * processes]
            clients.append(Client(governor, iter(part), limits.max_in_flight, len(part), has_quota=has_quota))
    sigma = server.latency_sigma

    def latency(rng: random.Random) -> float:
        return server.latency_seconds * rng.lognormvariate(-sigma * sigma / 2, sigma)

    simulation = Simulation(ledger_of(server), clients, latency, rejection_seconds=rejection_seconds, seed=seed)
    simulation.run(job.time_limit_seconds)
    return sorted((r for client in clients for r in client.records), key=lambda record: record.received_at)
