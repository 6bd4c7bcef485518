"""Measures decoding beside what the bandwidth of the memory allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.gpu.loop import results
from bench.gpu.printing import print_line, rounded

PROMPT_TOKENS, STEPS = 128, 32


def measure(python: Path, weights: Path, device: str, sequences: Sequence[int]) -> None:
    """Runs the loop and prints its table.

    A step reads all weights, keys and values once: what they take at the speed of copies is its least time.

    Args:
        python: Interpreter that has `transformers`.
        weights: Directory of the model.
        device: `cuda` or `cpu`.
        sequences: Numbers of sequences that are decoded at once.

    Raises:
        subprocess.CalledProcessError: The loop failed; its output is printed.
    """
    asked = {"device": device, "sequences": list(sequences), "prompt_tokens": PROMPT_TOKENS, "steps": STEPS}
    rows = results(python, "decode_loop", weights, asked)
    speed = next(rows)
    print_line(
        f"decoding on {device} after prompts of {PROMPT_TOKENS} tokens; weights of "
        f"{rounded(speed['weights_gb'])} GB, copies at {speed['copy_gb_per_second']:,.0f} GB/s"
    )
    print_line(f"{'sequences':>9}  cache GB  limit ms/step  by Python  as a graph  tokens/s  share of the limit")
    for row in rows:
        least = (speed["weights_gb"] + row["cache_gb"]) / speed["copy_gb_per_second"]
        graph_seconds = row["graph_seconds"]
        python_seconds = row["python_seconds"]
        best = graph_seconds or python_seconds
        print_line(
            f"{row['sequences']:9}  {row['cache_gb']:8.3f}  {least * 1e3:13.2f}  {python_seconds * 1e3:9.2f}  "
            f"{rounded(graph_seconds and graph_seconds * 1e3):>10}  {row['sequences'] / best:8,.0f}  "
            f"{least / best:18.0%}"
        )
