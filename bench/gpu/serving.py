"""Measures `transformers serve`, a server other than the sandbox, with a model of random weights.

It prints the rows per second at several numbers of requests in flight, how many times as fast that is as with the
first number, the same with the limit that the engine finds by latency, those of a whole job, and the results of
requests that a server might reject.
"""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.pacing.concurrency import ConcurrencyLimit
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RetryPolicy
from airflow_provider_llmbeam.engine.tokens import estimate_tokens
from airflow_provider_llmbeam.providers.openai.client import OpenAIBackend
from airflow_provider_llmbeam.spec import Generation, Limits, OpenAIModel
from bench.gpu import job
from bench.gpu.printing import print_line

#: Rows per place in flight, so that each number of places takes about the same time.
ROWS_PER_PLACE = 8
#: The words of the prompts, which are the tokens of the model.
TEXT = "the quick brown fox jumps over a lazy dog while rain falls on quiet streets of an old town"


def measure(
    python: Path,
    weights: Path,
    *,
    device: str,
    is_batching: bool,
    rows: int,
    max_output_tokens: int,
    in_flight: Sequence[int],
) -> None:
    """Starts the server, sends requests and prints the results.

    Args:
        python: Interpreter that has `transformers[serving]`.
        weights: Directory of the model.
        device: `cuda` or `cpu`.
        is_batching: Whether the server has continuous batching.
        rows: Number of prompts.
        max_output_tokens: Tokens per answer.
        in_flight: Fixed numbers of requests in flight; the limit by latency begins with the largest.
    """
    with _server(python, weights, device, is_batching) as base_url:
        model = OpenAIModel(type="openai", name=str(weights), base_url=base_url)
        prompts = _prompts(rows)
        asyncio.run(_measure(model, prompts, max_output_tokens, in_flight))
        texts = [prompt.text for prompt in prompts]
        job.measure(str(weights), base_url, texts, max_output_tokens, max(in_flight))
        asyncio.run(_send_edge_cases(model))


@contextmanager
def _server(python: Path, weights: Path, device: str, is_batching: bool) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python.parent / "transformers", "serve", str(weights), "--host", "127.0.0.1", "--port", str(port)]
    if is_batching:
        command.append("--continuous-batching")
    started = time.monotonic()
    log = weights.parent / f"{weights.name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(part) for part in [*command, "--device", device]], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _wait_until_healthy(f"http://127.0.0.1:{port}/health", process, log)
        print_line(f"{'cold start':>24}  {time.monotonic() - started:.1f} s")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_healthy(
    url: str, process: subprocess.Popen[bytes], log: Path, timeout_seconds: float = 180
) -> None:
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise SystemExit(
        f"{url} did not answer within {timeout_seconds:g} s (exit status {process.poll()}). The end of what the "
        f"server wrote: {log.read_text()[-2000:]}"
    )


def _prompts(count: int) -> list[Prompt]:
    """Returns prompts of very different lengths, the same in every run."""
    rng, words = random.Random(6), TEXT.split()
    return [Prompt(" ".join(rng.choices(words, k=int(rng.lognormvariate(3.5, 1))))) for _ in range(count)]


async def _answers(
    model: OpenAIModel,
    prompts: list[Prompt],
    generation: Generation,
    in_flight: int,
    concurrency: ConcurrencyLimit | None = None,
) -> tuple[list[Outcome], float]:
    engine = Engine(
        OpenAIBackend(model, generation, None),
        governor=Governor(requests_per_minute=1e9),
        buckets=LengthBuckets((128, 512), generation.max_output_tokens),
        parser=OutputParser(None),
        policy=RetryPolicy(3, 60),
        max_in_flight=in_flight,
        request_timeout_seconds=Limits().request_timeout_seconds,
        concurrency=concurrency,
    )
    started = time.monotonic()
    try:
        outcomes = await engine.answer(prompts)
    finally:
        await engine.aclose()
    return outcomes, time.monotonic() - started


async def _measure(
    model: OpenAIModel, prompts: list[Prompt], max_output_tokens: int, in_flight: Sequence[int]
) -> None:
    generation = Generation(max_output_tokens=max_output_tokens)
    # The server loads its kernels at the first requests.
    for most in (1, max(in_flight)):
        await _answers(model, prompts[: ROWS_PER_PLACE * most], generation, most)
    first = None
    print_line(f"{'in flight':>24}  rows/s  x first  mean latency s  input tokens reported/estimated  answered")
    by_latency = ConcurrencyLimit(max(in_flight))
    for most, concurrency in (*((number, None) for number in in_flight), (max(in_flight), by_latency)):
        asked = prompts[: ROWS_PER_PLACE * most]
        outcomes, seconds = await _answers(model, asked, generation, most, concurrency)
        answered = [outcome for outcome in outcomes if isinstance(outcome, Completion)]
        failed = Counter(outcome.kind for outcome in outcomes if not isinstance(outcome, Completion))
        reported = sum(outcome.tokens.input for outcome in answered)
        estimated = sum(estimate_tokens(prompt.text) for prompt in asked)
        latency = sum(outcome.latency_seconds for outcome in answered) / max(1, len(answered))
        name = f"{most}, by latency {concurrency.limit}" if concurrency else str(most)
        rate = len(asked) / seconds
        first = first or rate
        print_line(
            f"{name:>24}  {rate:6.1f}  {rate / first:7.1f}  {latency:14.3f}  {f'{reported}/{estimated}':>31}  "
            f"{len(answered)}/{len(asked)} {dict(failed) or ''}"
        )


async def _send_edge_cases(model: OpenAIModel) -> None:
    plain = Generation(max_output_tokens=8)
    cases: list[tuple[str, OpenAIModel, Prompt, Generation]] = [
        ("system prompt", model, Prompt("Hello", system="Be brief."), plain),
        ("stream", model, Prompt("Hello"), plain.model_copy(update={"stream": True})),
        ("temperature not set", model, Prompt("Hello"), plain.model_copy(update={"temperature": None})),
        ("temperature and seed", model, Prompt("Hello"), plain.model_copy(update={"temperature": 0.7, "seed": 7})),
        ("stop sequence", model, Prompt("Hello"), plain.model_copy(update={"stop_sequences": ("fox",)})),
        ("unpaired surrogate", model, Prompt("\ud83d"), plain),
        ("image", model, Prompt("Hello", media=(("https://example.invalid/a.png", "image/png"),)), plain),
        ("longer than the context", model, Prompt("the " * 8000), plain),
        ("unknown model", model.model_copy(update={"name": "no/such-model"}), Prompt("Hello"), plain),
        ("empty model", model.model_copy(update={"name": ""}), Prompt("Hello"), plain),
    ]
    for name, case_model, prompt, generation in cases:
        (outcome,), seconds = await _answers(case_model, [prompt], generation, 1)
        if isinstance(outcome, Completion):
            result = (
                f"{outcome.finish_reason}, {outcome.tokens.input} + {outcome.tokens.output} tokens, "
                f"model {outcome.model[-30:]!r}"
            )
        else:
            result = f"{outcome.kind} {outcome.http_status}: {outcome.message[:140]}"
        print_line(f"{name:>24}  {seconds:5.2f} s  {result}")
