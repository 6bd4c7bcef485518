"""Fields and checks of the served model that all endpoints share."""

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
#: Models of the hub that require a token of an account that has accepted their terms.
_GATED = ("google/gemma-", "meta-llama/")
#: Arguments of vLLM that are set from fields of the spec, with the field.
_ARGUMENT_FIELDS = {
    "--model": "model",
    "--max-model-len": "max_model_length_tokens",
    "--max-num-seqs": "max_num_seqs",
    "--tensor-parallel-size": "accelerator_count",
    "-tp": "accelerator_count",
}
#: Arguments that change the memory, so that the sum of `gpu_memory` does not apply.
_MEMORY_ARGUMENTS = {
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
    """Rejects arguments of vLLM that are set from fields."""
    for name in _names(args):
        if name in _ARGUMENT_FIELDS:
            raise ValueError(f"has {name!r}, which `{_ARGUMENT_FIELDS[name]}` sets already")
    return args


def _memory_is_known(args: tuple[str, ...]) -> bool:
    return _MEMORY_ARGUMENTS.isdisjoint(_names(args))


def check_token(model: str, hf_token_secret: str | None) -> None:
    """Rejects a gated model of the hub without a token."""
    if hf_token_secret is None and "@" not in model and model.startswith(_GATED):
        raise ValueError(
            f"needs `hf_token_secret`: the Hugging Face hub serves {model} only to accounts that accepted its "
            "terms"
        )


class ServedModel(Protocol):
    """The served model of an endpoint, its length and concurrency."""

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
    """Returns the maximum length of a sequence, in tokens; `None`: the server chooses."""
    if endpoint.max_model_length_tokens is not None or architecture_of(endpoint.model) is None:
        return endpoint.max_model_length_tokens
    return DEFAULT_LENGTH_TOKENS


def sequences_of(endpoint: ServedModel, machine: GpuMachine | None) -> int | None:
    """Returns the maximum number of concurrent sequences; `None`: the server chooses."""
    if endpoint.max_num_seqs is not None or machine is None:
        return endpoint.max_num_seqs
    return default_sequences(endpoint.model, machine, endpoint.length_tokens or 1)


def check_memory(
    endpoint: ServedModel,
    args: tuple[str, ...],
    machine: GpuMachine | None,
    ladder: tuple[GpuMachine, ...],
) -> None:
    """Rejects a model that does not fit the memory of its machine."""
    if architecture_of(endpoint.model) is None or not _memory_is_known(args):
        return
    machine = machine or ladder[-1]
    problem = why_it_cannot_fit(
        endpoint.model, machine, endpoint.sequences or 1, endpoint.length_tokens or 1, ladder
    )
    if problem is not None:
        raise ValueError(problem)
