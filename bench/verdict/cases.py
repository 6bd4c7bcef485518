"""The plan: the cases of a seed, with their kills at numbers of billed answers."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Literal, get_args

Runner = Literal["process", "dataflow", "prism"]
Provider = Literal["gemini", "vertex", "openai", "anthropic", "batch"]
SinkKind = Literal["jsonl", "parquet", "bigquery", "postgres"]
Endpoint = Literal["garden", "cloud_run"]
RUNNERS: tuple[Runner, ...] = get_args(Runner)
PROVIDERS: tuple[Provider, ...] = get_args(Provider)
SINKS: tuple[SinkKind, ...] = get_args(SinkKind)
ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)
ROWS = 60
#: A twelfth of the rows each: those that the server refuses, and those that repeat the text of an earlier row.
SPECIAL_ROWS = ROWS // 12
#: Text of the rows that the server refuses.
REFUSED = "refuse"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job.

    Attributes:
        name: Name of the case and of its job.
        runner: Where it runs.
        provider: Whom it asks.
        sink: Where its answers go.
        texts: Text of each row.
        kills: Numbers of billed answers after which it is killed.
        kills_worker: Whether a kill on Dataflow hits a worker; otherwise the job is cancelled and submitted again.
        max_in_flight: Window of requests.
        max_batch_size: Largest batch of prompts.
        failing: Number of requests that the server answers with a 503 first.
    """

    name: str
    runner: Runner
    provider: Provider
    sink: SinkKind
    texts: tuple[str, ...]
    kills: tuple[int, ...]
    kills_worker: bool
    max_in_flight: int
    max_batch_size: int
    failing: int


@dataclass(frozen=True, kw_only=True)
class EndpointCase:
    """One Dag with an endpoint of its own.

    Attributes:
        name: Name of the case.
        kind: Kind of the endpoint.
        texts: Text of each row.
        kill: Number of billed answers after which its job is killed.
    """

    name: str
    kind: Endpoint
    texts: tuple[str, ...]
    kill: int


def make_plan(seed: int) -> list[Case]:
    """Returns the cases of a seed: each pair of runner, provider and sink; three seeds in a row have each triple.

    Batch inference on Dataflow is left out: the task prepares and awaits it, and no worker of Dataflow.
    """
    random_ = random.Random(seed)
    return [
        _make_case(random_, runner, provider, sink)
        for (p, provider), (s, sink) in itertools.product(enumerate(PROVIDERS), enumerate(SINKS))
        if ((runner := RUNNERS[(p + s + seed) % len(RUNNERS)]), provider) != ("dataflow", "batch")
    ]


def _make_case(random_: random.Random, runner: Runner, provider: Provider, sink: SinkKind) -> Case:
    texts = make_texts(random_)
    answers = len({text for text in texts if REFUSED not in text})
    # The answers of a batch arrive at one stroke: what comes before them is the pilot.
    moments = range(1, 33) if provider == "batch" else range(1, answers + 1)
    return Case(
        name=f"{runner}-{provider}-{sink}",
        runner=runner,
        provider=provider,
        sink=sink,
        texts=texts,
        kills=tuple(sorted(random_.sample(moments, random_.choice((1, 1, 2))))),
        kills_worker=random_.random() < 0.5,
        max_in_flight=random_.randint(2, 8),
        max_batch_size=random_.randint(5, ROWS),
        failing=random_.randint(0, 4),
    )


def make_endpoint_plan(seed: int) -> list[EndpointCase]:
    """Returns the cases of a seed with an endpoint: one of each kind."""
    random_ = random.Random(seed)
    made = [(kind, make_texts(random_)) for kind in ENDPOINTS]
    return [
        EndpointCase(name=f"endpoint-{kind}", kind=kind, texts=texts, kill=random_.randint(1, len(set(texts))))
        for kind, texts in made
    ]


def make_texts(random_: random.Random) -> tuple[str, ...]:
    """Returns the texts of the rows, some of which are refused and some of which repeat another one."""
    marks = [*[REFUSED] * SPECIAL_ROWS, *["row"] * (ROWS - 2 * SPECIAL_ROWS)]
    texts = [f"{mark} {number} of {random_.randrange(10**6)}" for number, mark in enumerate(marks)]
    texts += random_.sample(texts[SPECIAL_ROWS:], SPECIAL_ROWS)
    random_.shuffle(texts)
    return tuple(texts)


def digest_of(plan: Sequence[Case | EndpointCase]) -> str:
    """Returns a digest of a plan, which is equal for equal plans."""
    return sha256(json.dumps([asdict(case) for case in plan]).encode()).hexdigest()[:12]
