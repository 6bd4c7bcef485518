"""Measures the memory of a sequence of each length; run by the interpreter that has `transformers`.

Argument: the directory of the model. Reads from standard input a JSON object with `device` and `lengths` (tokens).
Writes one with `weights_gb`, `context_gb` (what the process holds besides tensors) and, in the order of the
lengths, `sequences`: `cache_gb` (keys and values) and `working_gb` (the largest sum of what the prompt took
besides weights and cache). On the CPU, what only a GPU counts is `null`.
"""

import json
import sys
from typing import Any

import torch

from bench.gpu.model import FIRST_TOKEN, load, write


def main(directory: str) -> None:
    """Computes one prompt of each length, and prints the result."""
    asked = json.load(sys.stdin)
    device = torch.device(asked["device"])
    is_gpu = device.type == "cuda"
    model, weights_gb = load(directory, device)
    sequences = [_measure(model, length, is_gpu) for length in asked["lengths"]]
    context_gb = None
    if is_gpu:
        free, total = torch.cuda.mem_get_info()
        context_gb = (total - free - torch.cuda.memory_reserved()) / 1e9
    write({"weights_gb": weights_gb, "context_gb": context_gb, "sequences": sequences})


def _measure(model: Any, length: int, is_gpu: bool) -> dict[str, float | None]:
    """Returns the memory of a sequence, once its prompt is computed."""
    ids = torch.randint(FIRST_TOKEN, model.config.vocab_size, (1, length), device=model.device)
    if is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with torch.inference_mode():
        # As vLLM does, only the logits of the last token are computed.
        output = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    cache = sum(tensor.nbytes for layer in output.past_key_values.layers for tensor in (layer.keys, layer.values))
    working = torch.cuda.max_memory_allocated() - before - cache if is_gpu else None
    return {"cache_gb": cache / 1e9, "working_gb": working / 1e9 if working is not None else None}


if __name__ == "__main__":
    main(*sys.argv[1:])
