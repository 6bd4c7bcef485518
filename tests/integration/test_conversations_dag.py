"""The Dag of `dags/` that answers the messages of each user in order."""

from __future__ import annotations

import json
import runpy
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.slow]
FILE = Path(__file__).resolve().parents[2] / "dags" / "conversations.py"


def message(user: str, number: int) -> dict:
    sent_at = f"2026-01-01T{number:02}:00:00Z"
    return {"message_id": f"{user}-{number}", "user_id": user, "sent_at": sent_at, "text": f"{user} asks {number}"}


def test_a_night_goes_on_with_the_conversations_of_the_night_before(
    run_dag, connection, monkeypatch, tmp_path, sandbox
):
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    dag = runpy.run_path(str(FILE))["dag"]
    (tmp_path / "messages").mkdir()

    def night(day: int, *messages: dict) -> dict[str, str]:
        lines = "".join(json.dumps(each) + "\n" for each in messages)
        (tmp_path / f"messages/2026-01-0{day}.jsonl").write_text(lines)
        _, states = run_dag(dag, logical_date=datetime(2026, 1, day, tzinfo=UTC))
        assert states == {"reply": "success"}
        (file,) = (tmp_path / f"replies/2026-01-0{day}").glob("answers-*")
        return {row["message_id"]: row["answer"] for row in map(json.loads, file.read_text().splitlines())}

    first = night(1, message("ann", 2), message("bob", 1), message("ann", 1))
    night(2, message("bob", 3), message("ann", 3))
    ann = ("ann asks 1", first["ann-1"], "ann asks 2", first["ann-2"], "ann asks 3")
    assert {record.turns for record in sandbox.requests} == {
        ("bob asks 1", first["bob-1"], "bob asks 3"),
        ann[:3],
        ann,
        (),  # the first turns, of ann and of bob
    }
    assert len(sandbox.requests) == 5
