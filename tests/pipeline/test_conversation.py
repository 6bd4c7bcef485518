"""Conversations: rows of one key in order, with their history, over several runs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from llmbeam_sandbox import Fault
from waiting import until

from airflow_provider_llmbeam.engine.prefix import PromptHead
from airflow_provider_llmbeam.exceptions import JobSpecError, TooManyFailedRowsError
from airflow_provider_llmbeam.pipeline.conversation.store import history_directory, read_turns
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.pipeline.measure.forget.run import forget
from airflow_provider_llmbeam.pipeline.measure.preview import make_preview
from airflow_provider_llmbeam.pipeline.prefix_cache import head_to_cache
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.evaluation import PreviewSample
from airflow_provider_llmbeam.spec.safety import RowsToForget
from tests.pipeline.conftest import Job
from tests.replying import Received, Replying, chat_reply

GEMINI = "gemini.generateContent"
USERS, TURNS = 20, 4


def row(user: int, turn: int) -> dict[str, Any]:
    return {"id": f"{user}-{turn}", "user": f"u{user}", "sent_at": turn, "text": f"turn {turn} of user {user}"}


def shuffled(turns: range = range(TURNS), users: range = range(USERS)) -> list[dict[str, Any]]:
    rows = [row(user, turn) for user in users for turn in turns]
    random.Random(7).shuffle(rows)
    return rows


@pytest.fixture
def chat(job, tmp_path) -> Any:
    conversation = {"key": "user", "order_by": "sent_at", "max_turns": TURNS}
    job.spec |= {"conversation": conversation, "owner": "dag/task", "state_uri": str(tmp_path / "state")}
    return job


def answers_of(ended: Any) -> dict[str, str]:
    return {each["id"]: each["answer"] for each in ended.answers}


def prompt(user: int, turn: int) -> str:
    return f"Say it: {row(user, turn)['text']}"


def received(answers: dict[str, str], user: int, turn: int, *before: int) -> tuple[str, ...]:
    """Returns the messages that the server receives with a turn that has these turns as its history."""
    return (
        *(text for each in before for text in (prompt(user, each), answers[f"{user}-{each}"])),
        prompt(user, turn),
    )


def history_of(job: Any) -> dict[str, str]:
    directory = history_directory(JobSpec.parse(job.spec))
    return {turn.name: turn.answer for path in Path(directory).glob("*") for _, turn in read_turns(str(path))}


def test_turns_have_their_history_in_order_over_two_days_and_a_repeated_day_pays_nothing(chat, sandbox):
    monday = chat.run(shuffled())
    answers = answers_of(monday)
    turns = Counter(record.turns for record in sandbox.requests if record.turns)
    assert turns == Counter(
        received(answers, user, turn, *range(turn)) for user in range(USERS) for turn in range(1, TURNS)
    )
    sandbox.requests.clear()
    chat.spec["name"] = "tuesday"
    tuesday = chat.run(shuffled(range(TURNS, TURNS + 2), range(3)))
    answers |= answers_of(tuesday)
    assert Counter(record.turns for record in sandbox.requests) == Counter(
        received(answers, user, turn, *range(turn - TURNS, turn))
        for user in range(3)
        for turn in range(TURNS, TURNS + 2)
    )
    sandbox.requests.clear()
    chat.spec["name"] = "job"
    again = chat.run(shuffled())  # its history is what was before Tuesday
    assert answers_of(again) == answers_of(monday)
    assert again.origins == Counter(resumed=USERS * TURNS)
    assert len(sandbox.requests) == 0
    assert len(history_of(chat)) == len(answers)


def test_a_turn_without_an_answer_ends_its_conversation_or_is_left_out_of_it(chat, sandbox):
    sandbox.faults.queue(GEMINI, Fault(kind="error", http_status=503, message="later"))
    blocked, without_time = {**row(1, 1), "text": "[[block]]"}, {**row(2, 0), "sent_at": None}
    rows = [*shuffled(users=range(1)), row(1, 0), blocked, row(1, 2), without_time]
    with pytest.raises(TooManyFailedRowsError):
        chat.run(rows, limits={"max_attempts": 1, "max_in_flight": 1, "max_dead_letter_ratio": 0.1})
    assert not history_of(chat)
    first = [record.turns for record in sandbox.requests if record.is_billed]
    ended = chat.run()
    assert ended.kinds == Counter(blocked=1, no_turn=1)
    answers = answers_of(ended)
    asked = [*first, *(record.turns for record in sandbox.requests[len(first) :])]
    assert received(answers, 0, 3, 0, 1, 2) in asked
    assert received(answers, 1, 2, 0) in asked
    assert not [paid for paid, number in sandbox.requests.paid().items() if number > 1]


@pytest.mark.full
def test_a_job_killed_with_kill_9_goes_on_within_its_conversations(chat, sandbox, tmp_path):
    chat.write(shuffled())
    (spec := tmp_path / "spec.json").write_text(json.dumps(chat.spec))
    held = sandbox.faults.hold(GEMINI, f"turn {TURNS - 2} of")
    job = subprocess.Popen([sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", str(spec)])
    until(lambda: held.waiting == USERS)  # each conversation has recorded the turns before the one that waits
    job.kill()
    job.wait()
    before = sandbox.requests.paid()
    held.release()
    assert not history_of(chat)
    ended = chat.run()
    assert ended.origins["resumed"] >= USERS * (TURNS - 2)
    assert ended.origins["resumed"] + ended.origins["fresh"] == USERS * TURNS
    after = sandbox.requests.paid()
    assert len(after) == USERS * TURNS
    assert {after[paid] for paid in before} == {1}


def test_an_estimate_and_a_preview_refuse_conversations_and_a_prefix_cache_has_the_system_text_alone(chat):
    rules = "Rule: be brief. " * 3000
    spec = JobSpec.parse({**chat.spec, "prompt": {"system": rules, "template": "Say it: {{ row.text }}"}})
    for refused in (lambda: make_estimate(spec), lambda: make_preview(spec, PreviewSample())):
        with pytest.raises(JobSpecError, match=r"^`conversation`: a.* sends each prompt without its history"):
            refused()
    assert head_to_cache(spec) == PromptHead("", rules)
    assert head_to_cache(spec.model_copy(update={"conversation": None})) == PromptHead("Say it: ", rules)


def repeated(request: Received) -> bytes:
    """Answers with all that the user has said."""
    messages = json.loads(request.body)["messages"]
    return chat_reply(" | ".join(message["content"] for message in messages if message["role"] == "user"))


@pytest.mark.full
def test_masked_turns_keep_their_values_apart_and_forgetting_a_row_removes_its_turn(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "the secret of the tests")
    texts = {1: "I am ann@example.com", 2: "Who am I?", 3: "And now?"}
    rows = [{"id": each, "user": "ann@example.com", "text": text} for each, text in texts.items()]
    with Replying(repeated) as model:
        job = Job(tmp_path, {"type": "openai", "name": "m", "base_url": model.url})
        job.spec |= {
            "prompt": "{{ row.text }}",
            "conversation": {"key": "user"},
            "state_uri": str(tmp_path / "state"),
            "owner": "dag/task",
            "safety": {"privacy": {}},
        }
        job.run(rows[:2])
        job.spec["name"] = "tuesday"
        ended = job.run(rows[2:])
        assert [each["answer"] for each in ended.answers] == [" | ".join(texts.values())]
        assert ended.report["privacy"]["invented"] == 0
        assert not [request for request in model.received if b"ann@example.com" in request.body]
    kept = [path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert not [content for content in kept if b"ann@example.com" in content]
    job.write(rows)
    of_user = {**job.spec, "name": "any", "owner": ""}
    removed = forget(JobSpec.parse(of_user), RowsToForget(keys=("1",), all_jobs=True))
    assert {(each.place, each.count) for each in removed.removed} >= {("history", 1), ("journal", 1)}
    assert any("later answers of the same conversations" in text for text in removed.unreached)
    assert sorted(history_of(job)) == ['{"id": 2}', '{"id": 3}']
