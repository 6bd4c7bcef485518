"""Measures a server that is not ours: `transformers serve`, with tiny random Gemma 3 weights that it generates.

It needs an environment of its own with `transformers[serving]` and `torch`, which this package never installs:

    python -m bench.real_server --python /path/to/venv/bin/python

It prints rows per second at several numbers of requests in flight, the prediction of the plan if each answer takes
as long as it did alone, and the results of requests that a server might reject. A server cannot be faster than
predicted, and one without continuous batching is as fast as with one request in flight.
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

place, words = sys.argv[1], sys.argv[2]
special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
inner = Tokenizer(models.BPE(unk_token="<unk>"))
inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
inner.decoder = decoders.ByteLevel()
inner.train_from_iterator(
    [words] * 10,
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
tokenizer.save_pretrained(place)
config = Gemma3TextConfig(
    vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=6, num_attention_heads=4,
    num_key_value_heads=1, head_dim=16, sliding_window=64, max_position_embeddings=4096,
    pad_token_id=0, eos_token_id=1, bos_token_id=2,
)
Gemma3ForCausalLM(config).save_pretrained(place)
"""


def main() -> None:
    """Generates the weights, starts the server, sends requests, and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, type=Path, help="of the environment with transformers[serving]")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--max-output-tokens", type=int, default=8)
    parser.add_argument("--continuous-batching", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        weights = Path(directory) / "tiny-gemma-3"
        subprocess.run([arguments.python, "-c", _MAKE_WEIGHTS, str(weights), _TEXT], check=True)
        with _server(arguments.python, weights, arguments.continuous_batching) as base_url:
            model = OpenAIModel(type="openai", name=str(weights), base_url=base_url)
            asyncio.run(_measure(model, arguments.rows, arguments.max_output_tokens))
            asyncio.run(_try_the_patience(model))


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
        _wait(f"http://127.0.0.1:{port}/health", process)
        _say(f"{'cold start':>24}  {time.monotonic() - started:.1f} s")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], timeout_seconds: float = 180) -> None:
    until = time.monotonic() + timeout_seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise SystemExit(f"{url} did not answer within {timeout_seconds:g} s (exit status {process.poll()}).")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _prompts(count: int) -> list[Prompt]:
    """Returns rows of very different lengths, always the same rows."""
    chance, words = random.Random(6), _TEXT.split()
    return [Prompt(" ".join(chance.choices(words, k=int(chance.lognormvariate(3.5, 1))))) for _ in range(count)]


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
    _say(f"{'in flight':>24}  rows/s  foretold  answered  input tokens told/estimated")
    for in_flight in (1, 4, 16):
        outcomes, seconds = await _answers(model, prompts, generation, in_flight)
        answered = [outcome for outcome in outcomes if isinstance(outcome, Completion)]
        foretold = _makespan_seconds(prompts, latency_of, in_flight)
        told = sum(outcome.input_tokens for outcome in answered)
        estimated = sum(estimate_tokens(prompt.text) for prompt in prompts)
        _say(
            f"{in_flight:>24}  {rows / seconds:6.1f}  {rows / foretold:8.1f}  {len(answered):4}/{rows:<4} "
            f" {told}/{estimated}"
        )


def _makespan_seconds(prompts: list[Prompt], latency_of: dict[str, float], in_flight: int) -> float:
    """Returns when the last answer of the plan arrives, if each takes as long as it did alone."""
    free = [0.0] * in_flight
    for request in plan(prompts):
        (index,) = request.indices
        heapq.heappush(free, heapq.heappop(free) + latency_of.get(prompts[index].text, 0.0))
    return max(free)


async def _try_the_patience(model: OpenAIModel) -> None:
    plain = Generation(max_output_tokens=8)
    cases: list[tuple[str, OpenAIModel, Prompt, Generation]] = [
        ("system prompt", model, Prompt("Hello", system="Be brief."), plain),
        ("stream", model, Prompt("Hello"), plain.model_copy(update={"stream": True})),
        ("temperature left open", model, Prompt("Hello"), plain.model_copy(update={"temperature": None})),
        ("temperature and seed", model, Prompt("Hello"), plain.model_copy(update={"temperature": 0.7, "seed": 7})),
        ("stop sequence", model, Prompt("Hello"), plain.model_copy(update={"stop_sequences": ("fox",)})),
        ("half an emoji", model, Prompt("\ud83d"), plain),
        ("an image", model, Prompt("Hello", media=(("https://example.invalid/a.png", "image/png"),)), plain),
        ("longer than the context", model, Prompt("the " * 8000), plain),
        ("unknown model", model.model_copy(update={"name": "no/such-model"}), Prompt("Hello"), plain),
        ("empty model", model.model_copy(update={"name": ""}), Prompt("Hello"), plain),
    ]
    for name, asked, prompt, generation in cases:
        (outcome,), seconds = await _answers(asked, [prompt], generation, 1)
        if isinstance(outcome, Completion):
            words = (
                f"{outcome.finish_reason}, {outcome.input_tokens} + {outcome.output_tokens} tokens, "
                f"model {outcome.model[-30:]!r}"
            )
        else:
            words = f"{outcome.kind} {outcome.http_status}: {outcome.message[:140]}"
        _say(f"{name:>24}  {seconds:5.2f} s  {words}")


if __name__ == "__main__":
    main()
