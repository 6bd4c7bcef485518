"""A server that computes each batch at once, as a loop; run by the interpreter that has `transformers`.

Argument: the directory of the model. Reads from standard input a JSON object with `device`, `output_tokens`,
`lengths` (tokens of each prompt) and `ways` (by name, the positions of the prompts of each batch). Writes a line
of JSON for each way with its `name`, `seconds`, `prompt_seconds` (the same with one token per answer),
`padded_tokens`, `weights_gb` and `peak_gb` (`null` on the CPU).
"""

import json
import sys
from typing import Any

import torch

from bench.gpu.model import FIRST_TOKEN, load, now, write


def main(directory: str) -> None:
    """Runs all batches of each way, and prints the results."""
    asked = json.load(sys.stdin)
    device = torch.device(asked["device"])
    model, weights_gb = load(directory, device)
    model.generation_config.eos_token_id = None  # every answer has all its tokens
    lengths, tokens = asked["lengths"], asked["output_tokens"]
    for name, batches in asked["ways"].items():
        _run(model, batches[0], lengths, tokens)  # loads the kernels
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        result = {
            "name": name,
            "prompt_seconds": _seconds(model, batches, lengths, 1),
            "seconds": _seconds(model, batches, lengths, tokens),
            "weights_gb": weights_gb,
            "padded_tokens": sum(len(batch) * max(lengths[at] for at in batch) for batch in batches),
            "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None,
        }
        write(result)


def _seconds(model: Any, batches: list[list[int]], lengths: list[int], tokens: int) -> float:
    """Answers all batches; returns the time in seconds.

    For prompts alone (one token per answer) it is about that of the kernels (1B on an H200: 4.6 s and 4.5 s).
    Python starts further tokens more slowly than the GPU computes them (with eight: 12.8 s and 4.9 s).
    `torch.profiler` took longer to return the sum of the kernels than the batches.
    """
    started = now(model.device)
    for batch in batches:
        _run(model, batch, lengths, tokens)
    return now(model.device) - started


def _run(model: Any, batch: list[int], lengths: list[int], tokens: int) -> None:
    """Answers a batch; shorter prompts are padded on the left."""
    longest = max(lengths[at] for at in batch)
    generator = torch.Generator().manual_seed(batch[0])
    ids = torch.randint(FIRST_TOKEN, model.config.vocab_size, (len(batch), longest), generator=generator)
    mask = torch.zeros_like(ids)
    for row, at in enumerate(batch):
        mask[row, longest - lengths[at] :] = 1
    with torch.inference_mode():
        model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
