"""What endpoints of every kind say of the model that they serve."""

from __future__ import annotations

from typing import Annotated, Protocol

from pydantic import Field

from airflow_provider_llmbeam.spec.endpoint.gpu_machine import GpuMachine
from airflow_provider_llmbeam.spec.endpoint.gpu_memory import (
    DEFAULT_LENGTH_TOKENS,
    architecture_of,
    default_sequences,
    why_it_cannot_fit,
)

Location = Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+[0-9]+$")]
Project = Annotated[str, Field(pattern=r"^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$")]
SecretVersion = Annotated[str, Field(pattern=r"^projects/[^/]+/secrets/[^/]+/versions/[^/]+$")]
ServiceAccount = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+$")]
#: Models of the hub that nobody gets without a token whose owner agreed to their terms.
_GATED = ("google/gemma-", "meta-llama/")
#: Arguments of vLLM that follow from fields, by the field that says the same.
_SAID_ELSEWHERE = {
    "--model": "model",
    "--max-model-len": "max_model_length_tokens",
    "--max-num-seqs": "max_num_seqs",
    "--tensor-parallel-size": "accelerator_count",
    "-tp": "accelerator_count",
}
#: Arguments that make the memory another than `gpu_memory` adds up.
_OTHER_SUMS = {
    "--quantization",
    "-q",
    "--dtype",
    "--kv-cache-dtype",
    "--gpu-memory-utilization",
    "--cpu-offload-gb",
    "--load-format",
    "--pipeline-parallel-size",
    "-pp",
}


def _names(args: tuple[str, ...]) -> list[str]:
    return [arg.split("=", 1)[0].replace("_", "-") for arg in args if arg.startswith("-")]


def no_field_twice(args: tuple[str, ...]) -> tuple[str, ...]:
    """Refuses arguments of vLLM that fields say."""
    for name in _names(args):
        if name in _SAID_ELSEWHERE:
            raise ValueError(f"has {name!r}, which `{_SAID_ELSEWHERE[name]}` says already")
    return args


def _is_judged(args: tuple[str, ...]) -> bool:
    return _OTHER_SUMS.isdisjoint(_names(args))


def check_token(model: str, hf_token_secret: str | None) -> None:
    """Refuses a gated model of the hub without a token."""
    if hf_token_secret is None and "@" not in model and model.startswith(_GATED):
        raise ValueError(
            f"needs `hf_token_secret`: the Hugging Face hub gives {model} only to those who agreed to its terms"
        )


class ServedModel(Protocol):
    """An endpoint's model, and how much of it at once."""

    @property
    def model(self) -> str: ...  # noqa: D102
    @property
    def max_model_length_tokens(self) -> int | None: ...  # noqa: D102
    @property
    def max_num_seqs(self) -> int | None: ...  # noqa: D102
    @property
    def length_tokens(self) -> int | None: ...  # noqa: D102
    @property
    def sequences(self) -> int | None: ...  # noqa: D102


def length_tokens_of(endpoint: ServedModel) -> int | None:
    """Of a sequence; `None`: the server chooses."""
    if endpoint.max_model_length_tokens is not None or architecture_of(endpoint.model) is None:
        return endpoint.max_model_length_tokens
    return DEFAULT_LENGTH_TOKENS


def sequences_of(endpoint: ServedModel, machine: GpuMachine | None) -> int | None:
    """Under way at once; `None`: the server chooses."""
    if endpoint.max_num_seqs is not None or machine is None:
        return endpoint.max_num_seqs
    return default_sequences(endpoint.model, machine, endpoint.length_tokens or 1)


def check_memory(
    endpoint: ServedModel,
    args: tuple[str, ...],
    machine: GpuMachine | None,
    ladder: tuple[GpuMachine, ...],
) -> None:
    """Refuses a model that does not fit its machine."""
    if architecture_of(endpoint.model) is None or not _is_judged(args):
        return
    machine = machine or ladder[-1]
    problem = why_it_cannot_fit(
        endpoint.model, machine, endpoint.sequences or 1, endpoint.length_tokens or 1, ladder
    )
    if problem is not None:
        raise ValueError(problem)
