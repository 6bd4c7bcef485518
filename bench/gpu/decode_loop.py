"""Measures steps of decoding with several numbers of sequences; run by the interpreter that has `transformers`.

Argument: the directory of the model. Reads from standard input a JSON object with `device`, `sequences` (numbers
of them), `prompt_tokens` and `steps`. Writes a line of JSON with `weights_gb` and `copy_gb_per_second`, and then
one for each number of sequences with `sequences`, `cache_gb` (keys and values that a step reads),
`python_seconds` (of a step that Python starts, kernel by kernel) and `graph_seconds` (of a step that is a
captured CUDA graph, without Python; `null` on the CPU).
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers import StaticCache

from bench.gpu.model import FIRST_TOKEN, load, now, write

_COPIED_BYTES = 2**30
#: Steps before those that are measured: they load the kernels, and the last is the one that is captured.
_FIRST_STEPS = 4


def main(directory: str) -> None:
    """Decodes with each number of sequences, and prints the results."""
    asked = json.load(sys.stdin)
    device = torch.device(asked["device"])
    model, weights_gb = load(directory, device)
    write({"weights_gb": weights_gb, "copy_gb_per_second": _copy_speed(device)})
    for sequences in asked["sequences"]:
        with torch.inference_mode():
            write(_measure(model, sequences, asked["prompt_tokens"], asked["steps"]))


def _measure(model: Any, sequences: int, prompt_tokens: int, steps: int) -> dict[str, float | None]:
    """Computes the prompts, and then the steps twice: started by Python, and as a graph."""
    # Static, as a captured graph reads and writes the same addresses. All steps fit: the window of a layer with
    # sliding attention must not fill, as Transformers copies from the host then, which cannot be captured.
    cache = StaticCache(config=model.config, max_cache_len=prompt_tokens + 2 * steps + _FIRST_STEPS)
    prompts = torch.randint(FIRST_TOKEN, model.config.vocab_size, (sequences, prompt_tokens), device=model.device)
    model(prompts, past_key_values=cache, use_cache=True, logits_to_keep=1)
    tokens = prompts[:, -1:].clone()

    def step() -> None:
        logits = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        tokens.copy_(logits[:, -1:].argmax(-1))

    for _ in range(_FIRST_STEPS - 1):
        step()
    python_seconds = _seconds(model.device, step, steps)
    graph_seconds = None
    if model.device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        graph_seconds = _seconds(model.device, graph.replay, steps)
    read = sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))
    return {
        "sequences": sequences,
        "cache_gb": read / 1e9,
        "python_seconds": python_seconds,
        "graph_seconds": graph_seconds,
    }


def _seconds(device: torch.device, step: Callable[[], object], steps: int) -> float:
    """Returns the time of a step in the mean."""
    started = now(device)
    for _ in range(steps):
        step()
    return (now(device) - started) / steps


def _copy_speed(device: torch.device) -> float:
    """Returns the GB that copies read and write per second: it bounds decoding, which reads all weights."""
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * _COPIED_BYTES / _seconds(device, lambda: target.copy_(source), 5) / 1e9


if __name__ == "__main__":
    main(*sys.argv[1:])
