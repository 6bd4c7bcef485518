"""Measures a server other than the sandbox: `transformers serve`, with generated tiny random Gemma 3 weights.

It requires a separate environment with `transformers[serving]` and `torch`, which this package never installs:

    python -m bench.real_server --python /path/to/venv/bin/python

It prints the rows per second at several numbers of requests in flight, the prediction of the plan if each answer
takes as long as with one request in flight, and the results of requests that a server might reject. A server
cannot be faster than predicted, and one without continuous batching is as fast as with one request in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_llmbeam.engine.backends.openai import OpenAIBackend
from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.plan import plan
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RetryPolicy
from airflow_provider_llmbeam.engine.tokens import estimate_tokens
from airflow_provider_llmbeam.spec import Generation, Limits, OpenAIModel

_TEXT = "the quick brown fox jumps over a lazy dog while rain falls on quiet streets of an old town"
_MAKE_WEIGHTS = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedTokenizerFast

directory, text = sys.argv[1], sys.argv[2]
special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
inner = Tokenizer(models.BPE(unk_token="<unk>"))
inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
inner.decoder = decoders.ByteLevel()
inner.train_from_iterator(
    [text] * 10,
    trainers.BpeTrainer(
        vocab_size=512, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    ),
)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>"
)
tokenizer.chat_template = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message['role'] }}\\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ part.get('text', '') }}{% endfor %}{% endif %}"
    "<end_of_turn>\\n{% endfor %}<start_of_turn>model\\n"
)
tokenizer.save_pretrained(directory)
config = Gemma3TextConfig(
    vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=6, num_attention_heads=4,
    num_key_value_heads=1, head_dim=16, sliding_window=64, max_position_embeddings=4096,
    pad_token_id=0, eos_token_id=1, bos_token_id=2,
)
Gemma3ForCausalLM(config).save_pretrained(directory)
"""


def main() -> None:
    """Generates the weights, starts the server, sends requests and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, type=Path, help="interpreter that has transformers[serving]")
    parser.add_argument("--rows", type=int, default=32, help="number of rows (default: 32)")
    parser.add_argument("--max-output-tokens", type=int, default=8, help="tokens per answer (default: 8)")
    parser.add_argument("--continuous-batching", action="store_true", help="start the server with this option")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        weights = Path(directory) / "tiny-gemma-3"
        subprocess.run([arguments.python, "-c", _MAKE_WEIGHTS, str(weights), _TEXT], check=True)
        with _server(arguments.python, weights, arguments.continuous_batching) as base_url:
            model = OpenAIModel(type="openai", name=str(weights), base_url=base_url)
            asyncio.run(_measure(model, arguments.rows, arguments.max_output_tokens))
            asyncio.run(_send_edge_cases(model))


@contextmanager
def _server(python: Path, weights: Path, is_batching: bool) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python.parent / "transformers", "serve", str(weights), "--host", "127.0.0.1", "--port", str(port)]
    if is_batching:
        command.append("--continuous-batching")
    started = time.monotonic()
    process = subprocess.Popen([str(part) for part in [*command, "--device", "cpu"]])
    try:
        _wait_until_healthy(f"http://127.0.0.1:{port}/health", process)
        _print_line(f"{'cold start':>24}  {time.monotonic() - started:.1f} s")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], timeout_seconds: float = 180) -> None:
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise SystemExit(f"{url} did not answer within {timeout_seconds:g} s (exit status {process.poll()}).")


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _prompts(count: int) -> list[Prompt]:
    """Returns prompts of very different lengths, the same in every run."""
    rng, words = random.Random(6), _TEXT.split()
    return [Prompt(" ".join(rng.choices(words, k=int(rng.lognormvariate(3.5, 1))))) for _ in range(count)]


async def _answers(
    model: OpenAIModel, prompts: list[Prompt], generation: Generation, in_flight: int
) -> tuple[list[Outcome], float]:
    engine = Engine(
        OpenAIBackend(model, generation, None),
        governor=Governor(requests_per_minute=1e9),
        buckets=LengthBuckets((128, 512), generation.max_output_tokens),
        parser=OutputParser(None),
        policy=RetryPolicy(3, 60),
        max_in_flight=in_flight,
        request_timeout_seconds=Limits().request_timeout_seconds,
    )
    started = time.monotonic()
    try:
        outcomes = await engine.answer(prompts)
    finally:
        await engine.aclose()
    return outcomes, time.monotonic() - started


async def _measure(model: OpenAIModel, rows: int, max_output_tokens: int) -> None:
    generation = Generation(max_output_tokens=max_output_tokens)
    prompts = _prompts(rows)
    await _answers(model, prompts[:2], generation, 1)
    alone, _ = await _answers(model, prompts, generation, 1)
    latency_of = {
        prompt.text: outcome.latency_seconds
        for prompt, outcome in zip(prompts, alone, strict=True)
        if isinstance(outcome, Completion)
    }
    _print_line(f"{'in flight':>24}  rows/s  predicted  answered  input tokens reported/estimated")
    for in_flight in (1, 4, 16):
        outcomes, seconds = await _answers(model, prompts, generation, in_flight)
        answered = [outcome for outcome in outcomes if isinstance(outcome, Completion)]
        predicted_seconds = _makespan_seconds(prompts, latency_of, in_flight)
        reported = sum(outcome.input_tokens for outcome in answered)
        estimated = sum(estimate_tokens(prompt.text) for prompt in prompts)
        _print_line(
            f"{in_flight:>24}  {rows / seconds:6.1f}  {rows / predicted_seconds:9.1f}  "
            f"{len(answered):4}/{rows:<4}  {reported}/{estimated}"
        )


def _makespan_seconds(prompts: list[Prompt], latency_of: dict[str, float], in_flight: int) -> float:
    """Returns the time to the last answer of the plan, if each takes as long as with one request in flight."""
    free = [0.0] * in_flight
    for request in plan(prompts):
        (index,) = request.indices
        heapq.heappush(free, heapq.heappop(free) + latency_of.get(prompts[index].text, 0.0))
    return max(free)


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
                f"{outcome.finish_reason}, {outcome.input_tokens} + {outcome.output_tokens} tokens, "
                f"model {outcome.model[-30:]!r}"
            )
        else:
            result = f"{outcome.kind} {outcome.http_status}: {outcome.message[:140]}"
        _print_line(f"{name:>24}  {seconds:5.2f} s  {result}")


if __name__ == "__main__":
    main()
