"""Machines with GPUs, and the memory that a model needs: its weights, the KV cache of all sequences, and overhead.

All sizes are in GB of 10^9 bytes. A model that is not in `ARCHITECTURES` is checked if the spec has its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel

#: Memory of one accelerator, in GB of 10^9 bytes. Source: cloud.google.com/compute/docs/gpus for
#: Vertex AI's names, cloud.google.com/run/docs/configuring/services/gpu for Cloud Run's (lower case).
ACCELERATOR_MEMORY_GB = {
    "NVIDIA_TESLA_T4": 16,
    "NVIDIA_L4": 24,
    "NVIDIA_TESLA_A100": 40,
    "NVIDIA_A100_80GB": 80,
    "NVIDIA_H100_80GB": 80,
    "NVIDIA_H100_MEGA_80GB": 80,
    "NVIDIA_RTX_PRO_6000": 96,
    "NVIDIA_H200_141GB": 141,
    "nvidia-l4": 24,
    "nvidia-rtx-pro-6000": 96,
}


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """A type of machine.

    Attributes:
        machine_type: Name on Compute Engine; for Cloud Run, which has no machine types, that of the GPU.
        accelerator_type: Name of the GPU in the API.
        accelerator_count: Number of GPUs per machine.
    """

    machine_type: str
    accelerator_type: str
    accelerator_count: int

    def __str__(self) -> str:
        return f"{self.machine_type} ({self.accelerator_count} × {self.accelerator_type})"


def _family(name: str, accelerator_type: str, counts: dict[str, int]) -> list[GpuMachine]:
    return [GpuMachine(f"{name}-{size}", accelerator_type, count) for size, count in counts.items()]


# Machine types that include GPUs. Source: cloud.google.com/compute/docs/accelerator-optimized-machines
_MACHINES = [
    *_family("g2-standard", "NVIDIA_L4", {"4": 1, "8": 1, "12": 1, "16": 1, "32": 1, "24": 2, "48": 4, "96": 8}),
    *_family("a2-highgpu", "NVIDIA_TESLA_A100", {"1g": 1, "2g": 2, "4g": 4, "8g": 8}),
    *_family("a2-ultragpu", "NVIDIA_A100_80GB", {"1g": 1, "2g": 2, "4g": 4, "8g": 8}),
    *_family("a3-highgpu", "NVIDIA_H100_80GB", {"1g": 1, "2g": 2, "4g": 4, "8g": 8}),
    *_family("a3-megagpu", "NVIDIA_H100_MEGA_80GB", {"8g": 8}),
    *_family("a3-ultragpu", "NVIDIA_H200_141GB", {"8g": 8}),
]
MACHINES = {machine.machine_type: machine for machine in _MACHINES}

#: Machines by price, the cheapest first; the first that fits is the default. Google's own sample runs Gemma 3 12B
#: on four L4 for its whole context (GoogleCloudPlatform/python-docs-samples, model_garden/gemma/gemma3_deploy.py).
VERTEX_LADDER = tuple(
    MACHINES[name]
    for name in (
        "g2-standard-12",
        "g2-standard-24",
        "a2-highgpu-1g",
        "g2-standard-48",
        "a2-ultragpu-1g",
        "a3-highgpu-1g",
        "a2-ultragpu-2g",
        "a3-highgpu-2g",
        "a3-highgpu-4g",
        "a3-highgpu-8g",
    )
)
#: The same for Cloud Run, where an instance has one GPU.
CLOUD_RUN_LADDER = (
    GpuMachine("nvidia-l4", "nvidia-l4", 1),
    GpuMachine("nvidia-rtx-pro-6000", "nvidia-rtx-pro-6000", 1),
)


#: Fraction of each GPU that vLLM uses (its default of `--gpu-memory-utilization`).
GPU_MEMORY_UTILIZATION = 0.9
#: Overhead per GPU, for context, activations, CUDA graphs, the vision encoder and the largest logits (262,144
#: words × 4 bytes × 256 sequences = 0.3 GB). Assumed: with Transformers, context and activations of the 4B model
#: were 1.1 GB for 2,048 tokens of prompts in a step, and 2.3 GB for 8,192 (H200, docs/evidence/gpu.md).
OVERHEAD_GB = 2.0
#: Bytes per number of the weights and of the KV cache (bfloat16).
BYTES_PER_NUMBER = 2
#: Length of a sequence, if the spec does not set it.
DEFAULT_LENGTH_TOKENS = 8192
#: A machine that fits fewer concurrent sequences is not a default.
LEAST_DEFAULT_SEQUENCES = 8
MOST_DEFAULT_SEQUENCES = 64


class Architecture(SpecModel):
    """Dimensions of a model that determine its memory, from its model card and its config.json.

    Attributes:
        parameters: Number of parameters, encoders included; of a mixture of experts those of all experts, which
            are all in memory.
        layers: Number of attention layers with a KV cache of their own (`num_hidden_layers` less
            `num_kv_shared_layers`).
        global_layers: Number of these that cache every token (`full_attention` in `layer_types`); the others cache
            the last `window_tokens`. `None`: all.
        attention_heads: Number of attention heads (`num_attention_heads`), which must be divisible by the number
            of GPUs.
        key_value_heads: Number of key-value heads (`num_key_value_heads`); fewer than GPUs are replicated on each.
        head_dim: Numbers per key or value (`head_dim`).
        global_key_value_heads: The same of a global layer (`num_global_key_value_heads`). `None`: as the others.
        global_head_dim: The same of a global layer (`global_head_dim`). `None`: as the others.
        window_tokens: Window of a local layer, in tokens (`sliding_window`).
        context_tokens: Maximum length of a sequence, in tokens (`max_position_embeddings`).
    """

    parameters: Annotated[float, Field(gt=0)]
    layers: Annotated[int, Field(ge=1)]
    global_layers: Annotated[int, Field(ge=0)] | None = None
    attention_heads: Annotated[int, Field(ge=1)]
    key_value_heads: Annotated[int, Field(ge=1)]
    head_dim: Annotated[int, Field(ge=1)]
    global_key_value_heads: Annotated[int, Field(ge=1)] | None = None
    global_head_dim: Annotated[int, Field(ge=1)] | None = None
    window_tokens: Annotated[int, Field(ge=0)] = 0
    context_tokens: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _global_layers_are_layers(self) -> Self:
        if self.global_layers is not None and self.global_layers > self.layers:
            raise ValueError(f"has {self.global_layers} `global_layers`, and {self.layers} `layers` in all")
        return self


# Gemma 3. Parameters: Technical Report (arXiv 2503.19786), table 1, the sum of its three columns. Layers, heads
# and windows: the `text_config` of each model's config.json on the Hugging Face hub, where every sixth layer is
# global (`sliding_window_pattern` 6).
# Gemma 4, read on 2026-11-28. Layers, heads, windows, shared caches: Google's implementation,
# google-deepmind/gemma, gemma/gm/nn/gemma4/_gemma4.py at b2dc124b. Parameters: its model card as quoted at
# andysmith.ai/wiki/gemma-4-model-card, with embeddings, and 0.55 billion for the encoder (26B, 31B) or 0.45 (E2B,
# E4B). vLLM stores both keys and values of global layers, although they are equal
# (vllm/model_executor/models/gemma4.py at 001cabc1). The numbers of the 12B model are not established: name them
# in `architecture`.
_GEMMA3 = {
    # Parameters, layers, global layers, attention heads, key-value heads, head dim, window, context
    "gemma-3-1b": (1.000e9, 26, 4, 4, 1, 256, 512, 32_768),
    "gemma-3-4b": (4.301e9, 34, 5, 8, 4, 256, 1024, 131_072),
    "gemma-3-12b": (12.188e9, 48, 8, 16, 8, 256, 1024, 131_072),
    "gemma-3-27b": (27.433e9, 62, 10, 32, 16, 128, 1024, 131_072),
}
_GEMMA4 = {
    # The same, and key-value heads of a global layer, whose head dim is 512
    "gemma-4-e2b": (5.55e9, 15, 3, 8, 1, 256, 512, 131_072, 1),
    "gemma-4-e4b": (8.45e9, 24, 4, 8, 2, 256, 512, 131_072, 2),
    "gemma-4-26b-a4b": (25.75e9, 30, 5, 16, 8, 256, 1024, 262_144, 2),
    "gemma-4-31b": (31.25e9, 60, 10, 32, 16, 256, 1024, 262_144, 4),
}


def _architecture(*numbers: float, **of_global_layers: int) -> Architecture:
    names = (
        *("parameters", "layers", "global_layers", "attention_heads", "key_value_heads", "head_dim"),
        *("window_tokens", "context_tokens"),
    )
    return Architecture.model_validate({**dict(zip(names, numbers, strict=True)), **of_global_layers})


ARCHITECTURES = {
    **{name: _architecture(*numbers) for name, numbers in _GEMMA3.items()},
    **{
        name: _architecture(*numbers, global_key_value_heads=heads, global_head_dim=512)
        for name, (*numbers, heads) in _GEMMA4.items()
    },
}


def architecture_of(model: str) -> Architecture | None:
    """Returns the dimensions of a model by its name in Model Garden, the hub or a bucket; `None` if unknown."""
    # Whole names only: what ends in `-qat-q4_0-gguf`, `-awq` or `-bnb-4bit` is smaller than its size says. Names
    # of Gemma 4 have capitals on the hub, and none in Model Garden.
    name, _, kind = re.split("[/@]", model.lower().removesuffix("/"))[-1].rpartition("-")
    return ARCHITECTURES.get(name) if kind in ("it", "pt") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySum:
    """Memory that a model needs on all its GPUs, and the memory available.

    Attributes:
        weights_gb: Weights of the model.
        sequence_gb: KV cache of one sequence of maximum length.
        sequences: Number of concurrent sequences.
        overhead_gb: Overhead of the server.
        usable_gb: Memory that the server can use.
    """

    weights_gb: float
    sequence_gb: float
    sequences: int
    overhead_gb: float
    usable_gb: float

    @property
    def needed_gb(self) -> float:
        """Memory needed in total."""
        return self.weights_gb + self.sequences * self.sequence_gb + self.overhead_gb

    @property
    def fits(self) -> bool:
        """Whether the model fits."""
        return self.needed_gb <= self.usable_gb

    @property
    def most_sequences(self) -> int:
        """Maximum number of sequences that fit."""
        room = self.usable_gb - self.weights_gb - self.overhead_gb
        return max(0, int(room / self.sequence_gb))


def sequence_bytes(architecture: Architecture, length_tokens: int, gpus: int = 1) -> int:
    """Returns the size of the KV cache of one sequence, on all GPUs together, in bytes.

    A local layer caches only its window: vLLM's hybrid KV cache manager does so for Gemma
    (docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager). With `--disable-hybrid-kv-cache-manager`, or another
    server, every layer caches every token: up to six times as much.
    """
    of = architecture
    global_layers = of.layers if of.global_layers is None else of.global_layers
    global_heads = of.global_key_value_heads or of.key_value_heads
    global_numbers = max(global_heads, gpus) * (of.global_head_dim or of.head_dim)
    local_numbers = max(of.key_value_heads, gpus) * of.head_dim
    kept_in_window = min(length_tokens, of.window_tokens)
    numbers = (
        global_layers * length_tokens * global_numbers
        + (of.layers - global_layers) * kept_in_window * local_numbers
    )
    return 2 * BYTES_PER_NUMBER * numbers  # keys and values


def memory_sum(
    architecture: Architecture, machine: GpuMachine, sequences: int, length_tokens: int
) -> MemorySum | None:
    """Returns the memory that a model needs on a machine.

    Returns:
        `None` if the accelerator of the machine is not known.
    """
    memory_gb = ACCELERATOR_MEMORY_GB.get(machine.accelerator_type)
    if memory_gb is None:
        return None
    gpus = machine.accelerator_count
    return MemorySum(
        weights_gb=architecture.parameters * BYTES_PER_NUMBER / 1e9,
        sequence_gb=sequence_bytes(architecture, length_tokens, gpus) / 1e9,
        sequences=sequences,
        overhead_gb=OVERHEAD_GB * gpus,
        usable_gb=memory_gb * gpus * GPU_MEMORY_UTILIZATION,
    )


def smallest_machine(
    architecture: Architecture | None, ladder: Sequence[GpuMachine], sequences: int | None, length_tokens: int
) -> GpuMachine | None:
    """Returns the first machine of a ladder that fits a model; `None` if none does or the model is not known."""
    if architecture is None:
        return None
    for machine in ladder:
        total = memory_sum(architecture, machine, sequences or LEAST_DEFAULT_SEQUENCES, length_tokens)
        if total is not None and total.fits and architecture.attention_heads % machine.accelerator_count == 0:
            return machine
    return None


def default_sequences(architecture: Architecture | None, machine: GpuMachine, length_tokens: int) -> int | None:
    """Returns the number of sequences that fit, at most 64; `None` if model or accelerator is not known."""
    total = architecture and memory_sum(architecture, machine, 1, length_tokens)
    return max(1, min(MOST_DEFAULT_SEQUENCES, total.most_sequences)) if total else None


def why_it_cannot_fit(
    model: str,
    architecture: Architecture,
    machine: GpuMachine,
    sequences: int,
    length_tokens: int,
    ladder: Sequence[GpuMachine],
) -> str | None:
    """Explains, as the second half of a sentence, why a model does not fit a machine, with alternatives.

    Args:
        model: Name of the model.
        architecture: Its dimensions.
        machine: Machine to check.
        sequences: Number of concurrent sequences.
        length_tokens: Length of each, prompt and answer together.
        ladder: Machines to suggest instead.

    Returns:
        `None` if the model fits, or the accelerator is not known.
    """
    gpus = machine.accelerator_count
    if length_tokens > architecture.context_tokens:
        return (
            f"has `max_model_length_tokens` of {length_tokens:,}, and {model} takes sequences of at most "
            f"{architecture.context_tokens:,} tokens"
        )
    if architecture.attention_heads % gpus:
        return (
            f"has {gpus} GPUs, and the {architecture.attention_heads} attention heads of {model} cannot be "
            f"divided by that: take a power of two up to {architecture.attention_heads}"
        )
    total = memory_sum(architecture, machine, sequences, length_tokens)
    if total is None or total.fits:
        return None
    cache_gb = sequences * total.sequence_gb
    return (
        f"needs {total.needed_gb:.1f} GB of GPU memory for {model} and has {total.usable_gb:.1f} GB: "
        f"{total.weights_gb:.1f} GB of weights ({architecture.parameters / 1e9:.2f} billion parameters × "
        f"{BYTES_PER_NUMBER} bytes) + {cache_gb:.1f} GB of KV cache (`max_num_seqs` {sequences} × "
        f"{total.sequence_gb:.2f} GB for `max_model_length_tokens` {length_tokens:,}) + "
        f"{total.overhead_gb:.1f} GB overhead, on {gpus} × {machine.accelerator_type} of "
        f"{ACCELERATOR_MEMORY_GB[machine.accelerator_type]} GB, {GPU_MEMORY_UTILIZATION * 100:.0f} % of which "
        f"vLLM uses; {_alternatives(architecture, machine, total, length_tokens, ladder)}"
    )


def _alternatives(
    architecture: Architecture,
    machine: GpuMachine,
    total: MemorySum,
    length_tokens: int,
    ladder: Sequence[GpuMachine],
) -> str:
    ways = []
    if total.most_sequences:
        ways.append(f"`max_num_seqs` of at most {total.most_sequences}")
    if length := _longest(architecture, machine, total.sequences, length_tokens):
        ways.append(f"`max_model_length_tokens` of at most {length:,}")
    larger = smallest_machine(architecture, ladder, total.sequences, length_tokens)
    ways.append(f"a larger or second GPU, e.g. {larger}" if larger else "both fewer and shorter sequences")
    return f"set {', or '.join(ways)}" if len(ways) > 1 else f"use {ways[0]}"


def _longest(architecture: Architecture, machine: GpuMachine, sequences: int, too_long: int) -> int | None:
    """Returns the longest sequence that fits, in steps of 256 tokens."""
    for length in range(too_long // 256 * 256, 0, -256):
        total = memory_sum(architecture, machine, sequences, length)
        if total is not None and total.fits:
            return length
    return None
