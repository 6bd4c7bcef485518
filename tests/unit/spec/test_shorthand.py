"""What may be left out of a spec, or written in one word, where it has one meaning."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.inference import Inference

ROWS = {"source": {"uri": "rows.jsonl", "key": "id"}}
TABLE = {"source": {"type": "bigquery", "table": "p.d.rows", "key": "id"}, "state_uri": "gs://b/state"}
POSTGRES = {"type": "postgres", "table": "answers", "conn_id": "db"}


def spec_of(**parts: Any) -> JobSpec:
    given = {
        "name": "j",
        "prompt": "Say {{ row.text }}",
        "model": "gemini-3.5-flash",
        "sink": "out",
        **ROWS,
        **parts,
    }
    return JobSpec.parse(given)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"inference": "batch"}, {"inference": {"mode": "batch"}}),
        ({"cache": "moods", "state_uri": "s"}, {"cache": {"scope": "moods"}, "state_uri": "s"}),
        ({"runner": "prism"}, {"runner": {"type": "prism"}}),
        (
            {"prompt": {"template": "{{ row.a }}", "output_schema": ["spam", "ham"]}},
            {"prompt": {"template": "{{ row.a }}", "output_schema": {"type": "string", "enum": ["spam", "ham"]}}},
        ),
        ({**TABLE, "source": {"table": "p.d.rows", "key": "id"}}, TABLE),
        (
            {**TABLE, "source": {"query": "SELECT 1 AS id", "key": "id"}},
            {**TABLE, "source": {"type": "bigquery", "query": "SELECT 1 AS id", "key": "id"}},
        ),
        (
            {"source": {"conn_id": "db", "query": "SELECT 1 AS id", "parameters": "{'day': 1}", "key": "id"}},
            {
                "source": {
                    "type": "sql",
                    "conn_id": "db",
                    "query": "SELECT 1 AS id",
                    "parameters": {"day": 1},
                    "key": ["id"],
                }
            },
        ),
        (
            {"source": {"conn_id": "db", "query": "SELECT 1", "parameters": [date(2026, 1, 1)], "key": "id"}},
            {"source": {"conn_id": "db", "query": "SELECT 1", "parameters": ["2026-01-01"], "key": "id"}},
        ),
        (
            {"source": {"rows": [{"id": 1, "text": "a"}], "key": "id"}},
            {"source": {"type": "rows", "rows": [{"id": 1, "text": "a"}], "key": "id"}},
        ),
        (
            {"source": {"topic": "tickets", "bootstrap_servers": "b:9092"}, "state_uri": "s"},
            {"source": {"type": "kafka", "topic": "tickets", "bootstrap_servers": "b:9092"}, "state_uri": "s"},
        ),
        (
            {**TABLE, "sink": {"table": "p.d.answers"}},
            {**TABLE, "sink": {"type": "bigquery", "table": "p.d.answers"}},
        ),
        ({"sink": {"table": "answers", "conn_id": "db"}, "state_uri": "s"}, {"sink": POSTGRES, "state_uri": "s"}),
    ],
)
def test_one_word_stands_for_the_whole_where_it_has_one_meaning(short: Any, long: Any) -> None:
    found = spec_of(**short)
    assert found == spec_of(**long)
    assert JobSpec.from_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("short", "sentence"),
    [
        (
            {"inference": "bach"},
            "`inference.mode`: must be 'online', 'batch' or 'auto' (did you mean 'batch'?); got 'bach'",
        ),
        ({"runner": "dataflw"}, "`runner.type`: must be one of 'direct'"),
        ({"runner": "dataflow"}, "`runner.location`: this field is needed"),
        ({"inference": {"finish_by": "07:00"}}, "a time of day needs its zone"),
        ({"inference": {"finish_by": "07:00 Mars/Base"}}, "must be a time of day with its zone"),
        ({"inference": {"finish_by": "27:00 Europe/Berlin"}}, "must be a time of day with its zone"),
    ],
)
def test_a_word_that_means_nothing_is_refused_with_what_is_meant(short: Any, sentence: str) -> None:
    with pytest.raises(JobSpecError) as caught:
        spec_of(**short)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("started_at", "end"),
    [
        ("2026-11-28T22:00:00+01:00", "2026-11-29T07:00:00+01:00"),
        ("2026-11-28T06:59:59+01:00", "2026-11-28T07:00:00+01:00"),
        ("2026-11-28T07:00:00+01:00", "2026-11-29T07:00:00+01:00"),
        ("2026-03-28T23:00:00+01:00", "2026-03-29T07:00:00+02:00"),  # summer time begins
        ("2026-10-24T23:00:00+02:00", "2026-10-25T07:00:00+01:00"),
    ],
)
def test_a_time_of_day_is_the_next_one_in_its_zone(started_at: str, end: str) -> None:
    inference = Inference.parse({"finish_by": "07:00 Europe/Berlin"})
    assert inference.end_of_run(datetime.fromisoformat(started_at)) == datetime.fromisoformat(end)


@given(st.integers(1_500_000_000, 2_000_000_000), st.times(), st.sampled_from(["Europe/Berlin", "UTC"]))
def test_the_next_time_of_day_is_later_and_at_most_25_hours_away(started: int, clock: Any, zone: str) -> None:
    started_at = datetime.fromtimestamp(started, UTC)
    found = Inference.parse({"finish_by": f"{clock:%H:%M} {zone}"}).end_of_run(started_at)
    assert found is not None
    assert timedelta(0) < found - started_at <= timedelta(hours=25)
