from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.safety import RowsToForget


def test_a_key_or_a_fingerprint_is_needed() -> None:
    assert RowsToForget.parse({"keys": ["17"]}).keys == ("17",)
    assert RowsToForget.parse({"fingerprints": ["0" * 64]}).fingerprints == ("0" * 64,)
    with pytest.raises(JobSpecError, match="needs the key of a row, or the fingerprint of a prompt"):
        RowsToForget.parse({})


def test_a_fingerprint_has_64_digits() -> None:
    with pytest.raises(JobSpecError, match="fingerprints"):
        RowsToForget.parse({"fingerprints": ["a"]})  # it would be found in every line
