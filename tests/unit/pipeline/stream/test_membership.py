from __future__ import annotations

import json
import logging

import pytest

from airflow_provider_llmbeam.engine.state_version import VERSION
from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.stream.journal import BEGIN, begin_of
from airflow_provider_llmbeam.pipeline.stream.membership import (
    GroupMember,
    agreed_of,
    check_agreed,
    machines_of,
    metadata_of,
)
from airflow_provider_llmbeam.pipeline.stream.topics import Topics
from tests.stream_jobs import stream_job

HERE, THERE = ("here", "10.0.0.1"), ("there", "10.0.0.2")


@pytest.mark.parametrize(
    ("members", "machines"),
    [
        ([("a", HERE, 12)], 1.0),
        ([("a", HERE, 6), ("b", THERE, 6)], 2.0),
        ([("a", HERE, 3), ("b", HERE, 3), ("c", THERE, 6)], 2.0),
        ([("a", HERE, 3), ("b", THERE, 9)], 4.0),
        (
            [("a", HERE, 4), ("b", ("here", "10.0.0.2"), 4)],
            2.0,
        ),  # an address of its own, and a `client.id` for all
        ([("a", HERE, 4), ("b", ("there", "10.0.0.1"), 4)], 2.0),  # hosts behind one address
        ([("a", HERE, 0), ("b", THERE, 12)], None),
        ([("b", THERE, 12)], None),
        ([], None),
    ],
)
def test_a_machine_has_the_share_of_the_quota_that_it_has_of_the_partitions(members, machines):
    assert machines_of([GroupMember(*each) for each in members], "a") == machines


def job(**changes):
    return stream_job(**{"conversation": {"key": "user"}, **changes})


def agreed(**changes):
    spec = job(**changes)
    return agreed_of(spec, Topics.of(spec, spec.source, spec.sink))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"type": "openai", "name": "m2", "base_url": "http://127.0.0.1:1/v1"}},
        {"prompt": {"template": "Be brief. {{ row.text }}"}},
        {"limits": {"max_in_flight": 7}},
        {"conversation": {"key": "user", "max_turns": 3}},
    ],
)
def test_model_prompt_and_limits_may_change_while_members_run(changes):
    check_agreed([json.dumps({"journal": 1, **metadata_of(agreed())})], agreed(**changes), "g", lambda: 3)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"conversation": {"key": "session"}}, "conversation.key"),
        ({"stream": {"journal_topic": "j2"}}, "stream.journal_topic"),
        ({"stream": {"history_topic": "h2"}}, "stream.history_topic"),
        ({"conversation": None}, "stream.history_topic"),
        ({"safety": {"privacy": {"columns": ["text"]}}}, "safety.privacy"),
    ],
)
def test_a_member_with_another_state_is_refused_while_others_run(changes, field, caplog):
    metadata = [None, "", "x", json.dumps({"journal": 3}), json.dumps({"journal": 1, **metadata_of(agreed())})]
    with pytest.raises(JobSpecError, match=rf"does not fit the 2 running members of group 'g'.*`{field}` is"):
        check_agreed(metadata, agreed(**changes), "g", lambda: 2)
    with caplog.at_level(logging.WARNING, "llmbeam"):
        check_agreed(metadata, agreed(**changes), "g", lambda: 0)
    assert "goes on with another state" in caplog.text
    assert field in caplog.text


def test_a_field_that_only_one_of_two_versions_knows_is_no_difference():
    theirs = metadata_of({**agreed(), "stream.of_later": 1})
    check_agreed([json.dumps(theirs)], agreed(), "g", lambda: 1)


def test_the_journal_is_read_from_where_the_metadata_says():
    assert begin_of(json.dumps({BEGIN: 7, **metadata_of(agreed())})) == 7


def test_positions_of_a_newer_format_are_refused_whoever_runs():
    newer = json.dumps({"journal": 1, **metadata_of(agreed()), "version": VERSION + 1})
    with pytest.raises(JobFailedError, match=f"'g' has version {VERSION + 1} of its format"):
        check_agreed([newer], agreed(), "g", lambda: 0)
