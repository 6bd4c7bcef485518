"""The rows that a job is to forget."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.characters import valid_text


class RowsToForget(SpecModel):
    """The rows whose answers are removed from what a job has written.

    Attributes:
        keys: Key of each row: the value of the key column, or the JSON list of the values of several ones; or the
            JSON object of all key columns, e.g. `{"id": 4}`, as a preview shows it.
        fingerprints: Fingerprints of further prompts, e.g. of a row that has left the source.
        all_jobs: Whether the other jobs below `state_uri`, such as those of earlier Dag runs, forget them, too.
        dry_run: Whether nothing is removed.
    """

    keys: tuple[Annotated[str, AfterValidator(valid_text)], ...] = ()
    fingerprints: tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...] = ()
    all_jobs: bool = False
    dry_run: bool = False

    @model_validator(mode="after")
    def _some(self) -> RowsToForget:
        if not self.keys and not self.fingerprints:
            raise ValueError("needs the key of a row, or the fingerprint of a prompt")
        return self
