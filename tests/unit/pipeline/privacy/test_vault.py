"""What a prompt has of personal data, and what an answer has of its placeholders."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.privacy.vault import (
    VAULT,
    Vault,
    add_sealed,
    masked_in,
    sealed_of,
    vault_of,
    without_vault,
)

FOREIGN = ["x", None, 5, ["a"], {"values": "x"}, {"values": {"<A_1234>": 5}}, {"dropped": {"A": "x"}}, {"sent": 1}]


def masked_of(masker, template, *rows):
    """Returns what is masked in the prompt of rows that have the same one."""
    found = []
    for row in rows:
        masked = masker.row(row)
        found.append(
            masker.prompt(masked, Prompt(template.format(**masked), "Of bob@example.com, as in <IBAN_0123>"))
        )
    return masked_in(found[0][1], [row for row, _ in found])


def test_the_placeholders_of_a_prompt_are_counted_by_kind_as_often_as_they_are_in_it(make_masker):
    row = {"id": 1, "text": "ann@example.com and 123456, or ann@example.com", "note": "654321"}
    found = masked_of(make_masker("<IBAN_0123> {{ row.text }}"), "{text}: 222222 <EMAIL_0123>", row)
    assert found == {"EMAIL": 3, "NUMBER": 2}, "no column that the prompt does not have, and no example"


def test_hashed_and_dropped_values_are_counted_as_well(make_masker):
    masker = make_masker(actions={"EMAIL": "hash", "NUMBER": "drop"})
    rows = ({"id": 1, "text": "ann@example.com"}, {"id": 2, "text": "ann@example.com", "note": "654321"})
    assert masked_of(masker, "{text}", *rows) == {"EMAIL": 2, "NUMBER": 1}


def test_a_row_without_personal_data_has_nothing_masked(make_masker):
    assert masked_in(Prompt("<EMAIL_0123>"), [{"id": 1}, {VAULT: Vault(masked={})}]) == {}


@pytest.mark.parametrize("found", FOREIGN)
def test_a_column_of_the_source_that_has_the_name_of_the_vault_is_data(found):
    row = {"id": 1, VAULT: found}
    assert (vault_of(row), sealed_of(row), without_vault(row)) == (None, {}, row)
    assert masked_in(Prompt("<A_1234>"), [row]) == {}
    assert add_sealed(row, {}, "<A_1234>") is row
