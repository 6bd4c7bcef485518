"""Base class of endpoints: the fields and checks of the served model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Self

from pydantic import Field, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.encryption import location_fault
from airflow_provider_llmbeam.spec.endpoint.gpu_memory import (
    DEFAULT_LENGTH_TOKENS,
    Architecture,
    GpuMachine,
    architecture_of,
    default_sequences,
    smallest_machine,
    why_it_cannot_fit,
)
from airflow_provider_llmbeam.spec.fields.names import KmsKey, ProjectId, Region, SecretVersion, ServiceAccount

#: Models of the hub that require a token of an account that has accepted their terms.
_GATED = ("google/gemma-", "meta-llama/")
#: Arguments of vLLM that are set already, with the field that they are set from, if there is one.
_ARGUMENT_FIELDS = {
    "--port": None,
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


def argument_names(args: tuple[str, ...]) -> list[str]:
    """Returns the names of arguments of vLLM, without their values."""
    return [arg.split("=", 1)[0].replace("_", "-") for arg in args if arg.startswith("-")]


def no_field_twice(args: tuple[str, ...]) -> tuple[str, ...]:
    """Rejects arguments of vLLM that are set already."""
    for name in argument_names(args):
        if name in _ARGUMENT_FIELDS:
            field = _ARGUMENT_FIELDS[name]
            raise ValueError(f"has {name!r}, which {f'`{field}` sets' if field else 'is set'} already")
    return args


def _memory_is_known(args: tuple[str, ...]) -> bool:
    return _MEMORY_ARGUMENTS.isdisjoint(argument_names(args))


class EndpointSpec(SpecModel):
    """An endpoint that serves one model.

    Attributes:
        model: Name of the model; each type of endpoint documents the forms that it accepts.
        project: Google Cloud project that is billed. `None`: that of the Airflow connection or the credentials.
        locations: Regions, tried in this order if one has no such GPU in stock or no quota for it.
        service_account: Email of the service account of the server.
        hf_token_secret: Version of a secret of Secret Manager that holds a token of the Hugging Face hub, for
            gated models.
        architecture: Numbers of a model whose memory is not known here, see docs/reference/gpu-memory.md. `None`:
            those of its name, if it is known.
        max_model_length_tokens: Maximum length of a sequence, prompt and answer together, in tokens. `None`: 8,192
            for a known model.
        max_num_seqs: Maximum number of concurrent sequences. `None`: as many as fit the memory, at most 64.
        expires_after_seconds: Lifetime in seconds; afterwards the sweeper deletes it, independently of Airflow.
        kms_key_name: Key of Cloud KMS that encrypts endpoint and model, or the service, whose `locations` must all
            be its own, see docs/reference/encryption.md. `None`: that of the Airflow connection, if it has one.
    """

    model: Annotated[str, Field(min_length=1)]
    project: ProjectId | None = None
    locations: Annotated[tuple[Region, ...], Field(min_length=1)]
    service_account: ServiceAccount | None = None
    hf_token_secret: SecretVersion | None = None
    architecture: Architecture | None = None
    max_model_length_tokens: Annotated[int, Field(ge=1)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    expires_after_seconds: Annotated[int, Field(ge=600)] = 6 * 3600
    kms_key_name: KmsKey | None = None

    @model_validator(mode="after")
    def _locations_of_the_key(self) -> Self:
        locations: dict[str, str | None] = {f"locations.{n}": one for n, one in enumerate(self.locations)}
        if fault := location_fault(self.kms_key_name, locations):
            raise fault
        return self

    @property
    @abstractmethod
    def machine(self) -> GpuMachine | None:
        """Machine of one server; `None`: the platform chooses."""

    @property
    def known_architecture(self) -> Architecture | None:
        """Dimensions of the model; `None` if they are not known."""
        return self.architecture or architecture_of(self.model)

    @property
    def length_tokens(self) -> int | None:
        """Maximum length of a sequence, in tokens; `None`: the server chooses."""
        if self.max_model_length_tokens is not None or self.known_architecture is None:
            return self.max_model_length_tokens
        return min(DEFAULT_LENGTH_TOKENS, self.known_architecture.context_tokens)

    @property
    def sequences(self) -> int | None:
        """Maximum number of concurrent sequences; `None`: the server chooses."""
        machine = self.machine
        if self.max_num_seqs is not None or machine is None:
            return self.max_num_seqs
        return default_sequences(self.known_architecture, machine, self.length_tokens or 1)

    def _smallest(self, ladder: tuple[GpuMachine, ...]) -> GpuMachine | None:
        """Returns the first machine of a ladder that fits the model; `None` if none does or it is not known."""
        return smallest_machine(self.known_architecture, ladder, self.max_num_seqs, self.length_tokens or 1)

    def _check_token(self) -> None:
        """Rejects a gated model of the hub without a token."""
        if self.hf_token_secret is None and "@" not in self.model and self.model.startswith(_GATED):
            raise ValueError(
                f"needs `hf_token_secret`: the Hugging Face hub serves {self.model} only to accounts that "
                "accepted its terms"
            )

    def _check_memory(self, args: tuple[str, ...], ladder: tuple[GpuMachine, ...]) -> None:
        """Rejects a model that does not fit the memory of its machine."""
        if self.known_architecture is None or not _memory_is_known(args):
            return
        problem = why_it_cannot_fit(
            self.model,
            self.known_architecture,
            self.machine or ladder[-1],
            self.sequences or 1,
            self.length_tokens or 1,
            ladder,
        )
        if problem is not None:
            raise ValueError(problem)
