"""Checks of the emulated BigQuery."""

from __future__ import annotations

import re

from llmbeam_sandbox.core.rest import RestError


def check_dataset_id(name: str) -> None:
    """Checks the id of a dataset.

    Raises:
        RestError: It is invalid.
    """
    if not re.fullmatch(r"\w{1,1024}", name):
        raise RestError(400, f'Invalid dataset ID "{name}". Dataset IDs must be alphanumeric (plus underscores).')
