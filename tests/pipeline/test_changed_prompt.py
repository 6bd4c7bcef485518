"""A changed prompt on 2,000 rows, from the command line: what each step costs, against running blind."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner
from llmbeam_sandbox.models.answers import answer_text

from airflow_provider_llmbeam.cli import llmbeam

pytestmark = [pytest.mark.full, pytest.mark.promise(2), pytest.mark.slow]
ROWS, GOLDEN, SAMPLE, SHOWN = 2000, 100, 200, 3
SCHEMA = {
    "type": "object",
    "properties": {"mood": {"type": "string", "enum": ["good", "bad", "mixed"]}},
    "required": ["mood"],
}
LAST_MONTH = "Mood?\n\n{{ row.text }}"
BAD = "Answer at random.\n\n{{ row.text }}"
GOOD = "What is the mood of this review? A complaint about a part makes it mixed.\n\n{{ row.text }}"


@pytest.fixture
def shell(job, sandbox, monkeypatch):
    """Runs a command in the directory of the specs; returns what it printed, and the number of its requests."""
    levels = [(log, log.level) for log in map(logging.getLogger, ("llmbeam", "apache_beam"))]
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    monkeypatch.chdir(job.directory)
    rows = [{"id": number, "text": f"Review {number} of a kettle that boils."} for number in range(ROWS)]
    job.write(rows)
    golden = []
    for row in rows[:GOLDEN]:
        prompt = GOOD.replace("{{ row.text }}", row["text"])
        answer = answer_text(prompt, model="gemini-2.5-flash", schema=SCHEMA).text
        golden.append(row | {"expected_mood": json.loads(answer)["mood"]})
    files = {
        name: job.spec | {"prompt": {"template": text, "output_schema": SCHEMA}, "state_uri": "state"}
        for name, text in (("old", LAST_MONTH), ("bad", BAD), ("good", GOOD))
    }
    files["evaluation"] = {
        "golden": {"type": "rows", "rows": golden, "key": "id"},
        "metrics": {"mood": "exact"},
        "minimum": {"mood": 0.9},
    }
    files["comparison"] = {"other": {"prompt": files["old"]["prompt"]}, "sample_size": SAMPLE}
    for name, content in files.items():
        Path(f"{name}.json").write_text(json.dumps(content))

    def run(line, exit_code=0):
        before = len(sandbox.requests)
        ended = CliRunner(catch_exceptions=False).invoke(llmbeam, line.split())
        assert ended.exit_code == exit_code, ended.output
        return ended.stdout, len(sandbox.requests) - before

    yield run
    for log, level in levels:
        log.setLevel(level)


def test_a_bad_prompt_costs_a_hundred_rows_instead_of_a_night_and_the_good_one_costs_each_row_once(shell, caplog):
    assert shell("run old.json")[1] == ROWS

    printed, previewed = shell("preview bad.json")
    assert previewed == SHOWN
    printed, sent = shell("diff old.json bad.json")
    assert "prompt.template (changes the prompts)" in printed
    assert f"{SHOWN:,} of {ROWS:,} rows are answered already; {ROWS - SHOWN:,} requests would be sent" in printed
    assert sent == 0
    _, refused = shell("evaluate bad.json evaluation.json", exit_code=1)
    assert GOLDEN - SHOWN <= refused <= GOLDEN
    assert "NOT passed" in Path("state/job/evaluation.txt").read_text()

    _, passed = shell("evaluate good.json evaluation.json")
    assert passed == GOLDEN
    _, compared = shell("compare good.json comparison.json")
    assert SAMPLE - GOLDEN <= compared < SAMPLE, "last month's answers and the golden rows are known"
    printed, sent = shell("run good.json --json")
    assert passed + compared + sent == ROWS
    report = json.loads(printed)
    assert report["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    assert "`prompt.template` changed." in caplog.text
    # docs/evaluate.md has these figures.
    assert (previewed, refused, passed, compared, sent) == (3, 100, 100, 190, 1710)
