"""The models that a job asks besides its own, where an environment variable gives the address of their server."""

from __future__ import annotations

import json

import pytest

from airflow_provider_llmbeam.pipeline.__main__ import main

ROWS = [{"id": number, "text": f"review number {number}"} for number in range(4)]
GEMINI = {"own": "gemini-2.5-flash", "other": "gemini-2.5-flash-lite", "judge": "gemini-2.5-pro"}
OPENAI = {name: {"type": "openai", "name": f"gpt-{name}"} for name in GEMINI}


@pytest.fixture(params=[GEMINI, OPENAI], ids=["gemini", "openai"])
def models(request, sandbox, monkeypatch):
    """Models without an address, in an environment that gives that of the sandbox."""
    for name, value in sandbox.environment().items():
        if name.endswith(("_BASE_URL", "_API_KEY")):
            monkeypatch.setenv(name, value)
    return request.param


@pytest.fixture
def command(echo_job, models, tmp_path):
    """Runs a command on a job, and returns the directories below `state_uri` that have answers."""
    state = tmp_path / "state"

    def run(step=None, measured=None, **changes):
        echo_job.write(ROWS)
        spec = echo_job.spec | {"model": models["own"], "state_uri": str(state)} | changes
        (tmp_path / "job.json").write_text(json.dumps(spec))
        (tmp_path / "measured.json").write_text(json.dumps(measured))
        options = [] if step is None else [f"--step={step}", f"--input={tmp_path}/measured.json"]
        assert main([f"--spec={tmp_path}/job.json", *options]) == 0
        answers = [file for file in state.rglob("*.jsonl") if file.read_text()]
        return {str(file.parent.relative_to(state)) for file in answers}

    return run


def test_answers_of_the_other_model_of_a_comparison_are_used_for_its_server_only(command, models, sandbox):
    pairs = "{{ row.text }} A: {{ row.first }} B: {{ row.second }}"
    comparison = {"other": {"model": models["other"]}, "judge": {"rubric": pairs, "model": models["judge"]}}
    assert command("compare", comparison, cache={"scope": "s"}) == {"cache/s@loopback"}
    assert len({record.model for record in sandbox.requests}) == 3


@pytest.mark.full
def test_verdicts_of_the_judge_of_an_evaluation_are_used_for_its_server_only(command, models, sandbox):
    golden = {"type": "rows", "key": "id", "rows": ROWS}
    judge = {"type": "judge", "rubric": "{{ row.text }} {{ row.answer }}", "model": models["judge"]}
    evaluation = {"golden": golden, "metrics": {"grade": judge}}
    assert command("evaluate", evaluation, cache={"scope": "s"}) == {"cache/s@loopback"}
    assert len({record.model for record in sandbox.requests}) == 2


@pytest.mark.full
def test_verdicts_of_a_guard_are_used_for_its_server_only(command, models, sandbox):
    moderation = {"model": models["other"], "on_unreadable": "flag"}
    assert command(safety={"moderation": moderation}) == {"job/journal@loopback"}
    assert len({record.model for record in sandbox.requests}) == 2
