"""Machines with GPUs, and the memory that a model needs: its weights, the KV cache of all sequences, and overhead.

All sizes are in GB of 10^9 bytes. Models that are not in `ARCHITECTURES` are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Architecture:
    """Dimensions of a model that determine its memory.

    Attributes:
        parameters: Number of parameters, vision encoder included.
        layers: Number of attention layers.
        global_layers: Number of layers that cache every token; the others cache the last `window_tokens`.
        attention_heads: Number of attention heads, which must be divisible by the number of GPUs.
        key_value_heads: Number of key-value heads; fewer than GPUs are replicated on each.
        head_dim: Numbers per key or value.
        window_tokens: Window of a local layer, in tokens.
        context_tokens: Maximum length of a sequence, in tokens.
    """

    parameters: float
    layers: int
    global_layers: int
    attention_heads: int
    key_value_heads: int
    head_dim: int
    window_tokens: int
    context_tokens: int


# Parameters: Gemma 3 Technical Report (arXiv 2503.19786), table 1, the sum of its three columns. Layers, heads and
# windows: the `text_config` of each model's config.json on the Hugging Face hub, where every sixth layer is global
# (`sliding_window_pattern` 6).
ARCHITECTURES = {
    # Parameters, layers, global layers, attention heads, key-value heads, head dim, window, context
    "gemma-3-1b": Architecture(1.000e9, 26, 4, 4, 1, 256, 512, 32_768),
    "gemma-3-4b": Architecture(4.301e9, 34, 5, 8, 4, 256, 1024, 131_072),
    "gemma-3-12b": Architecture(12.188e9, 48, 8, 16, 8, 256, 1024, 131_072),
    "gemma-3-27b": Architecture(27.433e9, 62, 10, 32, 16, 128, 1024, 131_072),
}
#: Whole names only: what ends in `-qat-q4_0-gguf`, `-awq` or `-bnb-4bit` is smaller than its size says.
_KNOWN = re.compile(r"(?:^|[/@])(gemma-3-(?:1b|4b|12b|27b))-(?:it|pt)/?$")


def architecture_of(model: str) -> Architecture | None:
    """Returns the dimensions of a model by its name in Model Garden, the hub or a bucket; `None` if unknown."""
    found = _KNOWN.search(model)
    return ARCHITECTURES[found[1]] if found else None


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

    A local layer caches only its window: vLLM's hybrid KV cache manager does so for Gemma 3
    (docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager). With `--disable-hybrid-kv-cache-manager`, or another
    server, every layer caches every token: up to six times as much.
    """
    per_layer_token = 2 * max(architecture.key_value_heads, gpus) * architecture.head_dim * BYTES_PER_NUMBER
    local_layers = architecture.layers - architecture.global_layers
    kept = architecture.global_layers * length_tokens + local_layers * min(
        length_tokens, architecture.window_tokens
    )
    return per_layer_token * kept


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
    model: str, ladder: Sequence[GpuMachine], sequences: int | None, length_tokens: int
) -> GpuMachine | None:
    """Returns the first machine of a ladder that fits a model; `None` if none does or the model is not known."""
    architecture = architecture_of(model)
    if architecture is None:
        return None
    for machine in ladder:
        total = memory_sum(architecture, machine, sequences or LEAST_DEFAULT_SEQUENCES, length_tokens)
        if total is not None and total.fits and architecture.attention_heads % machine.accelerator_count == 0:
            return machine
    return None


def default_sequences(model: str, machine: GpuMachine, length_tokens: int) -> int | None:
    """Returns the number of sequences that fit, at most 64; `None` if model or accelerator is not known."""
    architecture = architecture_of(model)
    total = architecture and memory_sum(architecture, machine, 1, length_tokens)
    return max(1, min(MOST_DEFAULT_SEQUENCES, total.most_sequences)) if total else None


def why_it_cannot_fit(
    model: str, machine: GpuMachine, sequences: int, length_tokens: int, ladder: Sequence[GpuMachine]
) -> str | None:
    """Explains, as the second half of a sentence, why a model does not fit a machine, with alternatives.

    Args:
        model: Name of the model.
        machine: Machine to check.
        sequences: Number of concurrent sequences.
        length_tokens: Length of each, prompt and answer together.
        ladder: Machines to suggest instead.

    Returns:
        `None` if the model fits or is not known.
    """
    architecture = architecture_of(model)
    if architecture is None:
        return None
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
        f"vLLM uses; {_alternatives(model, architecture, machine, total, length_tokens, ladder)}"
    )


def _alternatives(
    model: str,
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
    larger = smallest_machine(model, ladder, total.sequences, length_tokens)
    ways.append(f"a larger or second GPU, e.g. {larger}" if larger else "both fewer and shorter sequences")
    return f"set {', or '.join(ways)}" if len(ways) > 1 else f"use {ways[0]}"


def _longest(architecture: Architecture, machine: GpuMachine, sequences: int, too_long: int) -> int | None:
    """Returns the longest sequence that fits, in steps of 256 tokens."""
    for length in range(too_long // 256 * 256, 0, -256):
        total = memory_sum(architecture, machine, sequences, length)
        if total is not None and total.fits:
            return length
    return None
