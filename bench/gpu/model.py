"""What the loops have in common; imported by the interpreter that has `transformers`."""

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

#: First token that is not a special one.
FIRST_TOKEN = 6


def load(directory: str, device: torch.device) -> tuple[Any, float]:
    """Returns a model, and its weights in GB."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16, device_map=device).eval()
    return model, model.get_memory_footprint(return_buffers=False) / 1e9


def now(device: torch.device) -> float:
    """Returns the time in seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def write(result: dict[str, Any]) -> None:
    """Writes a result as a line of JSON at once."""
    sys.stdout.write(f"{json.dumps(result)}\n")
    sys.stdout.flush()
