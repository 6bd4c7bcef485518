from __future__ import annotations

import re
from collections import Counter
from functools import partial
from typing import Any

import apache_beam as beam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.elements import FAILED, PLACE
from airflow_provider_llmbeam.pipeline.records import encode_key
from airflow_provider_llmbeam.pipeline.reporting.tally import TALLIES
from airflow_provider_llmbeam.pipeline.transforms.keys import (
    PickOne,
    key_line,
    refuse_duplicates,
    repeated_keys,
)
from airflow_provider_llmbeam.pipeline.transforms.line_blocks import BLOCK_BYTES, ToLineBlocks

values = st.integers() | st.text(max_size=5) | st.booleans()


def packed(rows: list[dict[str, Any]]) -> dict[int, list[bytes]]:
    """Returns the blocks of a bundle by partition."""
    step = ToLineBlocks(partial(key_line, ("id",)))
    step.start_bundle()
    parts: dict[int, list[bytes]] = {}
    found = [block for row in rows for block in step.process(row)]
    for part, block in [*found, *(handed_on.value for handed_on in step.finish_bundle())]:
        parts.setdefault(part, []).append(block)
    return parts


@given(st.lists(st.tuples(values, st.booleans()), max_size=30))
def test_exactly_the_keys_that_occur_twice_are_found_and_whether_their_rows_differ(
    found: list[tuple[Any, bool]],
) -> None:
    rows = [{"id": key, "text": text} for key, text in found]
    parts = [*map(repeated_keys, packed(rows).values())]
    lines = [encode_key(row, ("id",)).rstrip(b"\n") for row in rows]
    texts: dict[bytes, set[bool]] = {}
    for line, (_, text) in zip(lines, found, strict=True):
        texts.setdefault(line, set()).add(text)
    twice = {line for line, count in Counter(lines).items() if count > 1}
    for number, is_wanted in enumerate([lambda line: len(texts[line]) > 1, lambda line: len(texts[line]) == 1]):
        assert sorted(key for part in parts for key in part[number]) == sorted(filter(is_wanted, twice))


def test_a_large_block_is_emitted_before_the_bundle_ends() -> None:
    rows = [{"id": "x" * 1000}] * (2 + BLOCK_BYTES // 1000) * 2
    (blocks,) = packed(rows).values()
    assert len(blocks) > 1
    assert [*map(len, repeated_keys(blocks))] == [0, 1]


@pytest.mark.parametrize(("one", "other"), [(1, "1"), (True, 1), (1.5, "1.5"), ("a", "A"), ("é", "e\u0301")])
def test_similar_keys_are_different(one: Any, other: Any) -> None:
    assert encode_key({"id": one}, ("id",)) != encode_key({"id": other}, ("id",))


def test_a_key_consists_only_of_its_columns() -> None:
    assert encode_key({"b": 2, "text": "x", "a": 1}, ("a", "b")) == b'{"a": 1, "b": 2}\n'


def test_the_error_names_the_first_duplicate_keys() -> None:
    lines = [f'{{"id": {number}}}'.encode() for number in range(7, 0, -1)]
    named = re.escape("7 keys belong to several rows each: " + ", ".join(f'{{"id": {n}}}' for n in range(1, 6)))
    with pytest.raises(JobSpecError, match=rf"{named}, and 2 more\..*Nothing was sent or billed\."):
        refuse_duplicates(lines)


def test_without_duplicate_keys_nothing_is_refused() -> None:
    refuse_duplicates([])


def test_one_row_of_a_key_passes_and_it_is_always_the_same() -> None:
    rows = [{"id": 1, "text": text} for text in "bca"]
    for order in (rows, rows[::-1]):
        step = PickOne("dead_letter")
        step.start_bundle()
        first, *others = step.process((b'{"id": 1}\n', iter(order)))
        assert first == {"id": 1, "text": "a"}
        assert all(isinstance(output, beam.pvalue.TaggedOutput) and output.tag == FAILED for output in others)
        assert [output.value.row["text"] for output in others] == ["b", "c"]
        assert {output.value.failure.kind for output in others} == {"duplicate_key"}
        assert others[0].value.failure.message == 'another row has the key {"id": 1}'


def test_equal_rows_are_one_row_and_counted() -> None:
    step = PickOne("dead_letter")
    step.start_bundle()
    first, other = step.process((b'{"id": 1}\n', iter([{"id": 1, "text": text} for text in "abbaa"])))
    assert (first["text"], other.value.row["text"]) == ("a", "b")
    (counted,) = step.finish_bundle()
    assert counted.tag == TALLIES
    assert counted.value.value.skipped == {"identical": 3}


@pytest.mark.parametrize(("policy", "text"), [("first", "c"), ("last", "b")])
def test_the_place_in_the_source_decides_between_first_and_last(policy: Any, text: str) -> None:
    rows = [{"id": 1, "text": text, PLACE: ("a.jsonl", 0, place)} for place, text in enumerate("cab")]
    for order in (rows, rows[::-1], rows[1:] + rows[:1]):
        step = PickOne(policy)
        step.start_bundle()
        assert list(step.process((b'{"id": 1}\n', iter(order)))) == [{"id": 1, "text": text}]
        (counted,) = step.finish_bundle()
        assert counted.value.value.skipped == {"duplicate_key": 2}
