"""Measures what padding costs a static-batch server: three ways to divide the same prompts into batches."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.tokens import estimate_tokens
from airflow_provider_llmbeam.spec.endpoint.gpu_memory import ARCHITECTURES, sequence_bytes
from bench.gpu.batches import in_beam_buckets, in_order_of_arrival, in_planned_requests
from bench.gpu.loop import results
from bench.gpu.printing import print_line, rounded
from bench.rows import make_rows

#: Longest prompt, in tokens: longer ones are left out, as they decide the memory.
LONGEST_TOKENS = 2048


def measure(
    python: Path, weights: Path, size: str, device: str, rows: int, batch: int, output_tokens: int
) -> None:
    """Runs the loop and prints its table.

    Args:
        python: Interpreter that has `transformers`.
        weights: Directory of the model.
        size: Its size.
        device: `cuda` or `cpu`.
        rows: Number of prompts, with ShareGPT-like lengths.
        batch: Number of prompts of a batch.
        output_tokens: Tokens of each answer.

    Raises:
        subprocess.CalledProcessError: The loop failed; its output is printed.
    """
    prompts = [Prompt(row["text"]) for row in make_rows("sharegpt", rows)]
    prompts = [prompt for prompt in prompts if estimate_tokens(prompt.text) <= LONGEST_TOKENS]
    lengths = [estimate_tokens(prompt.text) for prompt in prompts]
    ways = {
        "order of arrival": in_order_of_arrival(lengths, batch),
        "Beam's buckets": in_beam_buckets(lengths, batch),
        "planned requests": in_planned_requests(prompts, batch),
    }
    asked = {"device": device, "output_tokens": output_tokens, "lengths": lengths, "ways": ways}
    print_line(
        f"{len(prompts):,} prompts of {sum(lengths):,} tokens, {output_tokens} tokens an answer, on {device}"
    )
    print_line(f"{'batches':>18}  number  padding  seconds  of prompts  peak GB  calculated GB")
    for result in results(python, "static_loop", weights, asked):
        batches = ways[result["name"]]
        print_line(
            f"{result['name']:>18}  {len(batches):6}  {1 - sum(lengths) / result['padded_tokens']:7.1%}  "
            f"{result['seconds']:7.1f}  {result['prompt_seconds']:10.1f}  {rounded(result['peak_gb']):>7}  "
            f"{_calculated_gb(size, batches, lengths, output_tokens, result['weights_gb']):>13}"
        )


def _calculated_gb(
    size: str, batches: list[list[int]], lengths: list[int], output_tokens: int, weights_gb: float
) -> str:
    """Returns weights and KV cache of the largest batch, by docs/evidence/gpu.md, without overhead."""
    architecture = ARCHITECTURES.get(f"gemma-3-{size}")
    if architecture is None:
        return "-"
    most = max(
        len(batch) * sequence_bytes(architecture, max(lengths[at] for at in batch) + output_tokens)
        for batch in batches
    )
    return f"{weights_gb + most / 1e9:.2f}"
