"""A server that computes each batch at once, as a loop; run by the interpreter that has `transformers`.

Argument: the directory of the model. Reads from standard input a JSON object with `device`, `output_tokens`,
`lengths` (tokens of each prompt) and `ways` (by name, the positions of the prompts of each batch). Writes one with
`weights_gb`, `copy_gb_per_second` and, for each way, `seconds`, `padded_tokens` and `peak_gb` (`null` on the CPU).
"""

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

#: First token that is not a special one.
_FIRST_TOKEN = 6
_COPIED_BYTES = 2**30


def main(directory: str) -> None:
    """Runs all batches of each way, the first batch once before, and prints the result."""
    asked = json.load(sys.stdin)
    device = torch.device(asked["device"])
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).to(device).eval()
    model.generation_config.eos_token_id = None  # every answer has `output_tokens` tokens
    ways = {}
    for name, batches in asked["ways"].items():
        _run(model, batches[0], asked)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        started = _now(device)
        for batch in batches:
            _run(model, batch, asked)
        ways[name] = {
            "seconds": _now(device) - started,
            "padded_tokens": sum(len(batch) * max(asked["lengths"][at] for at in batch) for batch in batches),
            "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None,
        }
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    result = {"weights_gb": weights / 1e9, "copy_gb_per_second": _copy_speed(device), "ways": ways}
    sys.stdout.write(json.dumps(result))


def _run(model: Any, batch: list[int], asked: dict[str, Any]) -> None:
    """Answers a batch; shorter prompts are padded on the left."""
    lengths = [asked["lengths"][at] for at in batch]
    longest = max(lengths)
    generator = torch.Generator().manual_seed(batch[0])
    ids = torch.randint(_FIRST_TOKEN, model.config.vocab_size, (len(batch), longest), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, longest - length :] = 1
    tokens = asked["output_tokens"]
    with torch.inference_mode():
        model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
        )


def _copy_speed(device: torch.device) -> float:
    """Returns the GB that copies read and write per second: it bounds decoding, which reads all weights."""
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    started = _now(device)
    for _ in range(5):
        target.copy_(source)
    return 5 * 2 * _COPIED_BYTES / (_now(device) - started) / 1e9


def _now(device: torch.device) -> float:
    """Returns the time in seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main(*sys.argv[1:])
