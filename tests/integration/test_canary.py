"""The Dag that sends a share of its rows to another model."""

from __future__ import annotations

import json
import runpy
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.promise(2), pytest.mark.slow]
FILE = Path(__file__).resolve().parents[2] / "dags" / "canary.py"


def test_each_row_is_asked_once_by_one_of_two_models_and_a_larger_share_pays_for_its_new_rows_only(
    run_dag, connection, monkeypatch, tmp_path, sandbox
):
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    (tmp_path / "reviews.csv").write_text("review_id,text\n" + "".join(f"{n},review {n}\n" for n in range(60)))

    def night(share):
        dag = runpy.run_path(str(FILE))["dag"]
        for name, rows in (("usual", [share, 1]), ("canary", [0, share])):
            dag.get_task(name).source = {**dag.get_task(name).source, "share": rows}
        run, states = run_dag(dag)
        assert states == {"usual": "success", "canary": "success"}
        answers = [
            json.loads(line) for line in (tmp_path / "moods/answers-00000-of-00001.jsonl").read_text().splitlines()
        ]
        assert sorted(int(row["review_id"]) for row in answers) == [*range(60)]
        manifests = [run.get_task_instance(name).xcom_pull(task_ids=name) for name in ("usual", "canary")]
        return Counter(row["llmbeam_model"] for row in answers), [found["requests"]["sent"] for found in manifests]

    models, sent = night(0.2)
    few = models["gemini-3.8-flash"]
    assert 0 < few < 30
    assert sent == [60 - few, few]
    models, sent = night(0.5)
    assert sent == [0, models["gemini-3.8-flash"] - few]
    assert len(sandbox.requests) == 60 + models["gemini-3.8-flash"] - few
