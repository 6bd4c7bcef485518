from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.conversation.store import (
    decode_turn,
    encode_turn,
    history_directory,
    oldest_turn_at,
    publish_history,
    read_turns,
)
from airflow_provider_llmbeam.pipeline.conversation.turns import StoredTurn
from airflow_provider_llmbeam.spec import JobSpec

DAY = 86_400.0
TURN = StoredTurn('{"id": 1}', (1, "a"), "Hi", "Hello", "f" * 64, 5.0, 6.0, {})

scalars = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "monday",
            "owner": "dag/task",
            "source": {"uri": "rows.jsonl", "key": ["id"]},
            "prompt": "{{ row.text }}",
            "model": {"type": "echo"},
            "sink": {"uri": str(tmp_path / "out")},
            "conversation": {"key": "user"},
            "state_uri": str(tmp_path / "state"),
        }
    )


@given(st.tuples(scalars, scalars), st.text(st.characters()), st.text(), st.dictionaries(st.text(), st.text()))
def test_a_turn_is_read_as_it_was_written(
    position: tuple[str, str], text: str, answer: str, values: dict[str, str]
) -> None:
    turn = TURN._replace(position=position, text=text, answer=answer, values=values)
    line = encode_turn("c", turn)
    assert line.count(b"\n") == 1
    assert decode_turn(line) == ("c", turn)


@pytest.mark.fuzz
@given(st.binary() | st.lists(scalars | st.none()).map(lambda value: json.dumps(value).encode()))
def test_a_line_of_others_is_passed_over(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_turn(line)


@pytest.mark.parametrize(
    "changes", [{"text": 1}, {"values": {"a": 1}}, {"position": [None]}, {"answered_at": "x"}]
)
def test_a_turn_with_a_field_of_another_type_is_none(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"type than a turn|position"):
        decode_turn(json.dumps({"conversation": "c", **TURN._asdict(), **changes}).encode())


def test_wrong_lines_of_a_file_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(encode_turn("c", TURN) + b"[" * 100_000 + b"\n{}\n" + encode_turn("d", TURN)[:-9])
    assert list(read_turns(str(path))) == [("c", TURN)]
    assert "3 lines are no turns and were passed over" in caplog.text


def test_all_attempts_of_a_run_have_the_same_history(spec: JobSpec) -> None:
    assert oldest_turn_at(spec, 30, 40 * DAY) == 10 * DAY
    assert oldest_turn_at(spec, 30, 41 * DAY) == 10 * DAY
    publish_history(spec, 30, [], 41 * DAY)
    assert oldest_turn_at(spec, 30, 42 * DAY) == 12 * DAY


def test_a_changed_time_of_the_first_attempt_is_an_error(spec: JobSpec) -> None:
    oldest_turn_at(spec, 30, 40 * DAY)
    Path(f"{spec.paths.home_uri}conversation.json").write_text("[]")
    with pytest.raises(JobSpecError, match=r"delete it\. Nothing was sent or billed\."):
        oldest_turn_at(spec, 30, 40 * DAY)


def test_files_with_old_turns_alone_are_deleted_and_others_stay(spec: JobSpec) -> None:
    directory = Path(history_directory(spec))
    directory.mkdir(parents=True)
    for name in (f"{int(DAY):010d}-a.jsonl", f"{int(20 * DAY):010d}-b.jsonl", "of-others.jsonl"):
        (directory / name).write_bytes(b"")
    publish_history(spec, 30, [], 33 * DAY)
    assert sorted(path.name for path in directory.iterdir()) == [
        f"{int(20 * DAY):010d}-b.jsonl",
        "of-others.jsonl",
    ]


def test_the_runs_of_a_task_share_a_history_and_other_tasks_do_not(spec: JobSpec) -> None:
    tuesday, other = (spec.model_copy(update=change) for change in ({"name": "tuesday"}, {"owner": "dag/other"}))
    assert history_directory(tuesday) == history_directory(spec) != history_directory(other)
