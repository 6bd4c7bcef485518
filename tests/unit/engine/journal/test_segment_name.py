from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.journal.segment_name import SegmentName, job_prefix, shard_of, shard_set

UNIQUE = "0123456789abcdef" * 2


@given(st.sets(st.text(max_size=70), max_size=50), st.integers(0, 2**32 - 1), st.text(max_size=20))
@example({"-1"}, 0, "")  # a negative number
def test_a_name_round_trips(fingerprints: set[str], created_at: int, job: str) -> None:
    name = SegmentName(shard_set(fingerprints), created_at)
    text = name.text(job, UNIQUE)
    assert SegmentName.parse(f"gs://bucket/state/{text}") == name
    assert text.startswith(job_prefix(job))
    assert len(text) <= 255  # the longest name of a local file


@given(st.sets(st.text(max_size=70), max_size=50), st.text(max_size=70))
def test_the_shard_of_each_fingerprint_is_in_the_set(fingerprints: set[str], other: str) -> None:
    shards = shard_set({*fingerprints, other})
    assert shards >> shard_of(other) & 1
    assert 0 <= shard_of(other) < 256


def test_fingerprints_with_equal_first_digits_share_a_shard() -> None:
    assert shard_of("a7" + "0" * 62) == shard_of("a7" + "f" * 62) == 0xA7


def test_the_name_of_an_older_version_is_recognised() -> None:
    assert SegmentName.parse(f"/state/{'0' * 32}-{UNIQUE}.jsonl") is None
