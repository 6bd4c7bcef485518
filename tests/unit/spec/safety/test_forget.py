from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.evaluation import PreviewSample
from airflow_provider_llmbeam.spec.safety import RowsToForget


def test_a_key_or_a_fingerprint_is_needed() -> None:
    assert RowsToForget.parse({"keys": ["17"]}).keys == ("17",)
    assert RowsToForget.parse({"fingerprints": ["0" * 64]}).fingerprints == ("0" * 64,)
    with pytest.raises(
        JobSpecError, match=r"`keys`: needs the key of a row \(`--key`\), or the fingerprint of a prompt"
    ):
        RowsToForget.parse({})


def test_a_fingerprint_has_64_digits() -> None:
    with pytest.raises(JobSpecError, match="fingerprints"):
        RowsToForget.parse({"fingerprints": ["a"]})  # it would be found in every line


@pytest.mark.parametrize("kind", [RowsToForget, PreviewSample])
def test_a_key_that_is_no_utf_8_is_that_of_the_row_as_it_is_read(kind: type[RowsToForget | PreviewSample]) -> None:
    found = kind.parse({"keys": ["a\udcff"]})  # a byte FF on the command line
    assert found.keys == ("a\ufffd",)
    assert kind.model_validate_json(found.model_dump_json()) == found
