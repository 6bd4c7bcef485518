"""Prism, Beam's runner for one machine."""

from __future__ import annotations

from typing import Literal

from airflow_provider_llmbeam.spec.base import SpecModel

#: Environment variable with the path of the binary, where `PrismRunner.binary_path` is not set.
BINARY_VARIABLE = "PRISM_LOCATION"


class PrismRunner(SpecModel):
    """Prism, which runs beside a separate process on the machine of the task, and ends with it.

    Attributes:
        binary_path: Path of the binary of Prism on that machine. `None`: the environment variable
            `PRISM_LOCATION`. Nothing is downloaded at run time.
    """

    type: Literal["prism"]
    binary_path: str | None = None
