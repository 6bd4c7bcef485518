"""Measures the memory of one sequence beside the formula of docs/evidence/gpu.md."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_llmbeam.spec.endpoint.gpu_memory import ARCHITECTURES, BYTES_PER_NUMBER, sequence_bytes
from bench.gpu.loop import results
from bench.gpu.printing import print_line, rounded

#: Lengths of the sequences, in tokens: those of docs/evidence/gpu.md.
LENGTHS = (2048, 8192, 32_768)


def measure(python: Path, weights: Path, size: str, device: str) -> None:
    """Runs the loop and prints its table.

    Args:
        python: Interpreter that has `transformers`.
        weights: Directory of the model.
        size: Its size; of `tiny`, only the two shorter lengths are measured.
        device: `cuda` or `cpu`.

    Raises:
        subprocess.CalledProcessError: The loop failed; its output is printed.
    """
    architecture = ARCHITECTURES.get(f"gemma-3-{size}")
    lengths = LENGTHS if architecture else LENGTHS[:2]
    (result,) = results(python, "memory_loop", weights, {"device": device, "lengths": lengths})
    weights_gb = architecture.parameters * BYTES_PER_NUMBER / 1e9 if architecture else None
    print_line(
        f"weights {rounded(result['weights_gb'])} GB (calculated with the vision encoder: "
        f"{rounded(weights_gb)}), besides tensors {rounded(result['context_gb'])} GB"
    )
    print_line(f"{'tokens':>8}  cache GB  calculated GB  working GB of the prompt")
    for length, sequence in zip(lengths, result["sequences"], strict=True):
        calculated_gb = sequence_bytes(architecture, length) / 1e9 if architecture else None
        print_line(
            f"{length:8,}  {sequence['cache_gb']:8.4f}  {rounded(calculated_gb, 4):>13}  "
            f"{rounded(sequence['working_gb']):>24}"
        )
