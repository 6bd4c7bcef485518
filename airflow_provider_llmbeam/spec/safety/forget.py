"""The rows that a job is to forget."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, model_validator

from airflow_provider_llmbeam.spec.base import FieldFaultError, SpecModel
from airflow_provider_llmbeam.spec.characters import valid_text

_FINGERPRINT = re.compile("[0-9a-f]{64}")


def valid_fingerprint(found: Any) -> str:
    """Validates the fingerprint of a prompt, of which a part would be in the lines of other prompts, too.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(found, str) or not _FINGERPRINT.fullmatch(found):
        raise ValueError("must be a fingerprint: 64 of the digits 0-9 and a-f")
    return found


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
    fingerprints: tuple[Annotated[str, AfterValidator(valid_fingerprint)], ...] = ()
    all_jobs: bool = False
    dry_run: bool = False

    @model_validator(mode="after")
    def _some(self) -> RowsToForget:
        if not self.keys and not self.fingerprints:
            want = "needs the key of a row (`--key`), or the fingerprint of a prompt (`--fingerprint`)"
            raise FieldFaultError("keys", want)
        return self
