"""Dags of `dags/` that are recipes: what their guides say is the result."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def dag_of(monkeypatch, tmp_path):
    """Loads a Dag whose data is in a temporary directory."""
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    return lambda name: runpy.run_path(str(ROOT / "dags" / f"{name}.py"))["dag"]


def test_a_csv_of_a_spreadsheet_is_classified_with_a_label_for_each_row(run_dag, connection, dag_of, tmp_path):
    text = "ticket_id;text\n1;The parcel never came to Köln.\n2;Wrong size.\n"
    (tmp_path / "tickets.csv").write_bytes(text.encode("cp1252"))
    _, states = run_dag(dag_of("classify_csv"))
    assert states == {"classify": "success"}
    lines = (tmp_path / "labels" / "answers-00000-of-00001.jsonl").read_text().splitlines()
    answers = {answer["ticket_id"]: answer for answer in map(json.loads, lines)}
    assert answers["1"]["text"] == "The parcel never came to Köln."
    assert {answer["answer"] for answer in answers.values()} <= {"delivery", "product", "invoice", "other"}


def test_notes_are_embedded_and_a_question_finds_them(run_dag, connection, dag_of, tmp_path):
    (tmp_path / "notes.csv").write_text("note_id,text\n1,The bike has a flat tyre.\n2,Dinner at eight.\n")
    run, states = run_dag(dag_of("embed_and_search"))
    assert states == {"embed": "success", "search": "success"}
    found = run.get_task_instance("search").xcom_pull(task_ids="search")
    assert sorted(each["text"] for each in found) == ["Dinner at eight.", "The bike has a flat tyre."]
