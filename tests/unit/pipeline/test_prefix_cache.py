"""Whether the head of a job's prompts is stored: only where that costs less than sending it."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.pipeline.prefix_cache import head_to_cache, marked_head
from airflow_provider_llmbeam.spec import JobSpec


def is_stored(tokens=6_000, rows=1_000, model="gemini-2.5-flash", price=None):
    return (
        head_to_cache(
            JobSpec.parse(
                {
                    "name": "job",
                    "source": {
                        "type": "rows",
                        "rows": [{"id": n, "text": "a"} for n in range(rows)],
                        "key": ["id"],
                    },
                    "prompt": {"template": "word " * tokens + "{{ row.text }}"},
                    "model": {"type": "gemini", "name": model},
                    "sink": {"uri": "out/"},
                    "limits": {} if price is None else {"price": price},
                }
            )
        )
        is not None
    )


@pytest.mark.parametrize(("rows", "expected"), [(1, False), (2, True)])
def test_a_head_is_stored_from_two_requests_on(rows, expected):
    assert is_stored(rows=rows) is expected


def test_a_head_below_the_minimum_of_the_model_is_not_stored():
    assert not is_stored(tokens=1_000)


@pytest.mark.parametrize(("cached", "expected"), [(1.0, False), (0.1, True)])
def test_a_head_is_stored_only_where_tokens_from_the_cache_are_cheaper(cached, expected):
    price = {"input_usd_per_million_tokens": 1.0, "output_usd_per_million_tokens": 2.0}
    assert is_stored(price=price | {"cached_input_usd_per_million_tokens": cached}) is expected


def test_a_head_whose_storage_has_no_known_price_is_not_stored():
    assert not is_stored(
        model="gemini-next", price={"input_usd_per_million_tokens": 1.0, "output_usd_per_million_tokens": 2.0}
    )


@pytest.mark.parametrize(
    ("key", "expected"), [(None, True), ("projects/p/locations/us/keyRings/r/cryptoKeys/k", False)]
)
def test_claude_is_asked_to_store_no_head_that_a_key_of_cloud_kms_would_have_to_encrypt(key, expected):
    spec = {
        "name": "job",
        "source": {"type": "rows", "rows": [{"id": 1, "text": "a"}], "key": ["id"]},
        "prompt": {"template": "word " * 2_000 + "{{ row.text }}"},
        "model": {"type": "anthropic", "name": "claude-haiku-5-5"},
        "sink": {"uri": "out/"},
        "kms_key_name": key,
    }
    assert (marked_head(JobSpec.parse(spec)) is not None) is expected
