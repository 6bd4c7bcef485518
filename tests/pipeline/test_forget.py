"""Deletion: after `forget` no file of a job has a row or its answer, and all other rows are as before."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.cli import llmbeam
from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, PermanentFailureError
from airflow_provider_llmbeam.pipeline import lease, storage
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import BatchManifest, write_manifest
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.compare import compare
from airflow_provider_llmbeam.pipeline.measure.evaluate import evaluate
from airflow_provider_llmbeam.pipeline.measure.forget.run import forget
from airflow_provider_llmbeam.pipeline.measure.review import sample_answers
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.evaluation import AnswerSample, Comparison, Evaluation
from airflow_provider_llmbeam.spec.safety import RowsToForget
from tests.pipeline.conftest import Job, read_lines

ROWS = [{"id": number, "text": f"<{number}> words"} for number in range(12)]


def forgotten(job: Job, *keys: object, **fields: Any) -> Any:
    changes = {name: fields.pop(name) for name in ("cache", "state_uri", "sink", "safety") if name in fields}
    rows = RowsToForget.parse({"keys": [str(key) for key in keys], **fields})
    return forget(JobSpec.parse(job.spec | changes), rows)


def counted(found: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in found.removed:
        counts[each.place] = counts.get(each.place, 0) + each.count
    return counts


def files(directory: Path) -> dict[str, bytes]:
    """Returns all files but the source."""
    return {
        str(path): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "rows.jsonl"
    }


def mentions(directory: Path, *texts: str) -> list[str]:
    found = [name for name, content in files(directory).items() for text in texts if text.encode() in content]
    for path in directory.rglob("*.parquet"):
        table = json.dumps(pq.read_table(path).to_pylist())
        found += [str(path) for text in texts if text in table]
    return found


def test_the_report_of_failed_rows_that_were_sent_again_is_removed_with_that_of_the_job(echo_job, tmp_path):
    echo_job.run(ROWS)
    out = next(tmp_path.rglob("report.json")).parent
    for name in ("report-retry.json", "report-retry.html"):  # as `RetryFailedRowsOperator` writes them
        (out / name).write_text("<7> words")
    assert counted(forgotten(echo_job, 7))["report"] == 4
    assert not mentions(tmp_path, "<7>")


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_no_file_has_a_forgotten_row_and_all_others_are_as_before(echo_job, tmp_path, file_format):
    job = echo_job
    job.spec["sink"] |= {"format": file_format, "shards": 3, "passthrough": ["text"]}
    before = job.run(ROWS)
    assert mentions(tmp_path, "<7>")
    found = forgotten(job, 7)
    assert counted(found) == {"journal": 1, "report": 2, "answers": 1}
    assert mentions(tmp_path, "<7>") == []
    paths = [path for path in job.out.iterdir() if path.name.startswith("answers-")]
    rows = [
        row
        for path in paths
        for row in (pq.read_table(path).to_pylist() if path.suffix == ".parquet" else read_lines(path))
    ]
    assert sorted(rows, key=lambda row: row["id"]) == [
        row for row in sorted(before.answers, key=lambda row: row["id"]) if row["id"] != 7
    ]


def test_the_next_run_asks_for_the_forgotten_row_alone(job, sandbox):
    job.run(ROWS)
    forgotten(job, 7)
    before = len(sandbox.requests)
    assert +job.run(ROWS).origins == {"resumed": 11, "fresh": 1}
    assert len(sandbox.requests) == before + 1
    forgotten(job, 7)
    job.run([row for row in ROWS if row["id"] != 7])  # it has left the source
    assert len(sandbox.requests) == before + 1


def test_a_key_that_no_row_has_is_named_and_not_an_error(echo_job, tmp_path):
    echo_job.run(ROWS)
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps(echo_job.spec))
    command = ["forget", str(spec), "--key=3", "--key=77", '--key={"key": 4}']
    as_json = CliRunner().invoke(llmbeam, [*command, "--dry-run", "--json"])
    assert (as_json.exit_code, json.loads(as_json.output)["not_found"]) == (0, ["77", '{"key": 4}'])
    found = CliRunner().invoke(llmbeam, command)
    assert found.exit_code == 0
    missing = (
        """Not found: no row of the source, the dead letter or the answers in files has '77', '{"key": 4}'.\n"""
    )
    assert missing in found.output
    assert forgotten(echo_job, 3).not_found == (), "the source still has the row"


def test_a_key_is_named_as_a_preview_shows_it(echo_job):
    echo_job.run(ROWS)
    found = forgotten(echo_job, '{"id": 4}')
    assert (counted(found)["answers"], found.not_found) == (1, ())


def test_a_row_that_has_left_the_source_is_found_by_its_answer(echo_job, tmp_path):
    echo_job.run(ROWS)
    echo_job.write(ROWS[:5])
    assert counted(forgotten(echo_job, 7))["journal"] == 1
    assert mentions(tmp_path / "out", "<7>") == []


def test_a_row_whose_personal_data_is_masked_is_forgotten(job, sandbox, tmp_path, monkeypatch):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "the secret of the tests")
    job.spec |= {"safety": {"privacy": {}}}
    rows = [{"id": f"{number}@example.com", "text": f"Call {number}@example.org"} for number in range(6)]
    job.write([*rows, {"id": "none@example.com"}])
    job.run()
    sent = len(sandbox.requests)
    assert counted(forgotten(job, "3@example.com", "none@example.com")) == {
        "journal": 1,
        "report": 2,
        "answers": 1,
        "dead letter": 1,
    }
    assert not read_lines(job.out / "dead_letter-00000-of-00001.jsonl")
    assert job.run(rows).origins["resumed"] == 5
    assert len(sandbox.requests) == sent + 1


def test_a_row_of_the_dead_letter_is_forgotten(job, sandbox, tmp_path):
    sandbox.faults.every("gemini.generateContent", 1, Fault(kind="error", http_status=400, message="no"))
    with pytest.raises(PermanentFailureError):
        job.run(ROWS[:3])
    assert counted(forgotten(job, 1)) == {"staged files": 1, "report": 2, "dead letter": 1}
    assert mentions(tmp_path, "<1>") == []
    failed = job.out / ".llmbeam/job/failed_rows.jsonl"
    assert sorted(row["id"] for row in read_lines(failed)) == [0, 2]


def test_a_key_that_was_read_as_a_float_is_named_by_its_integer(echo_job, tmp_path):
    echo_job.run([{"id": float(row["id"]), "text": row["text"]} for row in ROWS])
    assert counted(forgotten(echo_job, 7)) == {"journal": 1, "report": 2, "answers": 1}
    assert mentions(tmp_path, "<7>") == []


def test_keys_of_mixed_types_are_named_as_in_the_source(echo_job, tmp_path):
    rows = [{"id": 1, "k": "a", "text": "<1>"}, {"id": "A2", "k": "a", "text": "<A2>"}]
    echo_job.spec["source"]["key"] = ["k", "id"]
    echo_job.spec["sink"] |= {"format": "parquet"}
    echo_job.write(rows)
    echo_job.run()  # Parquet writes the key 1 as a text
    assert counted(forgotten(echo_job, '["a", 1]'))["answers"] == 1
    assert mentions(tmp_path, "<1>") == []


def test_an_answer_that_another_row_shares_stays(job, sandbox):
    rows = [{"id": 1, "text": "same"}, {"id": 2, "text": "same"}, {"id": 3, "text": "other"}]
    job.run(rows)
    found = forgotten(job, 1)
    assert "journal" not in counted(found)
    assert "which other rows have, too" in found.kept[0]
    before = len(sandbox.requests)
    job.run(rows)
    assert len(sandbox.requests) == before
    assert counted(forgotten(job, 1, 2))["journal"] == 1


def test_a_sample_to_be_reviewed_is_removed_and_files_of_the_user_are_named(echo_job, tmp_path):
    echo_job.run(ROWS)
    spec = JobSpec.parse(echo_job.spec)
    sample_answers(spec, AnswerSample.parse({"rows": len(ROWS)}))
    own = str(tmp_path / "own.jsonl")
    sample_answers(spec, AnswerSample.parse({"rows": len(ROWS), "review_uri": own}))
    found = forgotten(echo_job, 7)
    assert set(mentions(tmp_path, "<7>")) == {own}
    assert any("`review_uri`" in each and "golden sets" in each for each in found.unreached)


def of_guard(sandbox, side):
    guard = {"type": "openai", "name": "meta-llama/Llama-Guard-3-8B", "base_url": sandbox.openai_url}
    return {"safety": {"moderation": {"model": guard, "template": "Judge this: {text}", "on": [side]}}}


def verdicts_in(directory):
    lines = [line for path in directory.rglob("journal*/*.jsonl") for line in read_lines(path)]
    return [line for line in lines if "about" in line]


@pytest.mark.parametrize("side", ["input", "output"])
def test_the_verdict_of_a_guard_on_a_row_is_forgotten_and_no_other(openai_job, sandbox, tmp_path, side):
    job, safety = openai_job, of_guard(sandbox, side)
    job.run(ROWS, **safety)
    before = verdicts_in(tmp_path)
    assert len(before) == len(ROWS)
    sent = len(sandbox.requests)
    assert counted(forgotten(job, 7, **safety))["journal"] == 2
    after = verdicts_in(tmp_path)
    assert [each for each in before if each in after] == after
    assert len(after) == len(ROWS) - 1
    job.run(ROWS, **safety)
    assert len(sandbox.requests) == sent + 2


def test_the_verdicts_of_judges_on_a_row_are_forgotten_and_no_others(openai_job, sandbox, tmp_path):
    model = openai_job.spec["model"]
    spec, golden = JobSpec.parse(openai_job.spec), {"type": "rows", "key": "id", "rows": ROWS}
    openai_job.write(ROWS)
    grade = {"type": "judge", "model": model, "rubric": "{{ row.text }}: {{ row.answer }}"}
    evaluation = Evaluation.parse({"golden": golden, "metrics": {"grade": grade}})
    pair = {"model": model, "rubric": "{{ row.text }}: {{ row.first }} or {{ row.second }}"}
    other = {"prompt": {"template": "Another: {{ row.text }}"}}
    comparison = Comparison.parse({"other": other, "sample_size": len(ROWS), "judge": pair})
    evaluate(spec, evaluation)
    compare(spec, comparison)
    before, sent = verdicts_in(tmp_path), len(sandbox.requests)
    assert len(before) == 3 * len(ROWS)
    assert counted(forgotten(openai_job, 7))["journal"] == 4  # the answer, its grade, and the pair in both orders
    after = verdicts_in(tmp_path)
    assert [each for each in before if each in after] == after
    assert len(after) == 3 * len(ROWS) - 3
    evaluate(spec, evaluation)
    compare(spec, comparison)
    assert len(sandbox.requests) == sent + 4


def test_twice_removes_nothing_more_and_a_dry_run_nothing_at_all(echo_job, tmp_path):
    echo_job.run(ROWS)
    before = files(tmp_path)
    planned = forgotten(echo_job, 7, 8, dry_run=True)
    lease = str(tmp_path / "out/.llmbeam/job/lease")
    merge = str(tmp_path / "out/.llmbeam/_merge")
    assert {name: text for name, text in files(tmp_path).items() if name not in (lease, merge)} == {
        name: text for name, text in before.items() if name not in (lease, merge)
    }
    assert counted(forgotten(echo_job, 7, 8)) == counted(planned)
    again = forgotten(echo_job, 7, 8)
    assert again.removed == ()


@pytest.mark.full
def test_a_removal_that_was_killed_at_any_step_is_completed_by_the_next_one(tmp_path, monkeypatch):
    complete = Job(tmp_path, {"type": "echo"})
    complete.run(ROWS)
    complete.write(ROWS[:5])  # the fingerprint of row 7 is known from its answer alone
    for step in itertools.count():
        directory = tmp_path / str(step)
        shutil.copytree(complete.out, directory / "out")
        shutil.copy(complete.source, directory)
        job, calls, was_killed = Job(directory, {"type": "echo"}), itertools.count(), False
        with monkeypatch.context() as patched:
            for name in ("replace", "delete", "rename", "create"):
                patched.setattr(storage, name, dying(getattr(storage, name), calls, step))
            try:
                forgotten(job, 7)
            except KeyboardInterrupt:
                was_killed = True
        forgotten(job, 7)
        assert mentions(directory / "out", "<7>") == []
        if not was_killed:
            break
    assert step == 6  # the new segment, made and moved; two reports; the new answers, made and moved


def dying(original: Any, calls: Iterator[int], step: int) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) >= step:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    return call


def test_the_cache_of_the_scope_and_other_jobs_of_the_state_forget_too(echo_job, tmp_path):
    job = echo_job
    shared = {"state_uri": str(tmp_path / "state"), "cache": {"scope": "tickets"}}
    job.run(ROWS, **shared)
    assert mentions(tmp_path / "state", "<7>")
    assert counted(forgotten(job, 7, **shared))["cache"] == 1
    assert mentions(tmp_path / "state", "<7>") == []

    own = {"state_uri": str(tmp_path / "runs")}
    for name in ("monday", "tuesday"):
        job.run(ROWS, name=name, sink=job.spec["sink"] | {"on_existing": "take_over"}, **own)
    job.spec["name"] = "tuesday"
    assert counted(forgotten(job, 7, **own))["journal"] == 1
    assert mentions(tmp_path / "runs/monday", "<7>")
    assert counted(forgotten(job, 7, all_jobs=True, **own)) == {"journal": 1}
    assert mentions(tmp_path / "runs", "<7>") == []


@pytest.mark.parametrize("forged", ["a", '"', "", "[0-9a-f]", 7, ["a"], None, "A" * 64])
def test_a_forged_fingerprint_in_an_answers_file_removes_no_other_answer(echo_job, tmp_path, forged):
    audit = {"safety": {"audit": {"uri": str(tmp_path / "audit")}}}
    echo_job.run(ROWS, **audit)
    answers = echo_job.out / "answers-00000-of-00001.jsonl"
    rows = [row | {"llmbeam_fingerprint": forged} if row["id"] == 7 else row for row in read_lines(answers)]
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in (tmp_path / "audit").rglob("*.jsonl"):
        records = read_lines(path)
        hashes = records[7]["row_key_hashes"]
        lines = [json.dumps(each) for each in (*records, {"row_key_hashes": hashes, "fingerprint": forged})]
        path.write_text("\n".join([*lines, f"no json {hashes[0]}", json.dumps([hashes[0]]), ""]))
    assert counted(forgotten(echo_job, 7, **audit))["journal"] == 1
    assert sum(echo_job.run(ROWS, **audit).origins.values()) == 12
    assert echo_job.run(ROWS, **audit).origins["resumed"] == 12


def test_a_directory_with_a_glob_as_its_name_is_no_job(echo_job, tmp_path):
    own = {"state_uri": str(tmp_path / "state"), "sink": echo_job.spec["sink"] | {"on_existing": "merge"}}
    for name in ("monday", "tuesday"):
        echo_job.run(ROWS, name=name, **own)
    for name in ("*", "m[o]nday", "**", "job?"):
        (tmp_path / "state" / name / "batch").mkdir(parents=True)
        (tmp_path / "state" / name / "batch" / "file").write_text("x")
    kept = tmp_path / "state/monday/batch/kept"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("of another job")
    echo_job.spec["name"] = "tuesday"
    found = forgotten(echo_job, 7, all_jobs=True, dry_run=True, **own)
    assert {each.uri for each in found.removed if each.place == "batch inference"} == {f"{kept.parent}/"}
    (left,) = [each for each in found.left if each.startswith("directories")]
    assert all(f"{tmp_path}/state/{name}/" in left for name in ("*", "m[o]nday", "**", "job?"))


def test_all_jobs_of_a_table_forget_the_row_and_what_is_left_is_no_success(tmp_path, database, monkeypatch):
    monkeypatch.setenv("LLMBEAM_POSTGRES_DSN", database)
    job = Job(tmp_path, {"type": "echo"})
    sink = {"type": "postgres", "table": "answers"}
    job.spec |= {
        "sink": sink,
        "state_uri": str(tmp_path / "state"),
        "prompt": {"template": "{{ row.text }}{{ row.ok }}"},
    }
    audit = {"audit": {"type": "bigquery", "table": "p.d.audit", "include_text": True}}
    job.write([row | {"ok": 1} if row["id"] != 7 else row for row in ROWS])  # <7> becomes no prompt
    for name in ("monday", "tuesday"):
        run(JobSpec.parse(job.spec | {"name": name}))
    job.write([{"id": 7, "text": "<7>"}, {"id": 8, "text": "<8>"}])
    with pytest.raises(JobSpecError, match="failed_rows"):
        run(JobSpec.parse(job.spec | {"name": "wednesday"}))
    assert len(mentions(tmp_path / "state", "<7>")) >= 6
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job.spec | {"name": "new", "safety": audit}))
    command = ["forget", str(path), "--key=7", "--all-jobs"]
    assert CliRunner().invoke(llmbeam, [*command, "--dry-run"]).exit_code == 0
    result = CliRunner().invoke(llmbeam, command)
    assert mentions(tmp_path / "state", "<7>") == []
    assert [row["id"] for row in read_lines(tmp_path / "state/wednesday/failed_rows.jsonl")] == [8]
    assert result.exit_code == 4
    assert 'DELETE FROM "answers" WHERE ("id"::text = \'7\');' in result.output
    assert "audit records in table 'p.d.audit', with the texts" in result.output
    assert "/audit/" not in result.output, "a directory that never existed"


def test_a_segment_that_another_job_may_still_write_to_is_named_and_left(echo_job, tmp_path):
    shared = {"state_uri": str(tmp_path / "state"), "cache": {"scope": "tickets"}}
    echo_job.run(ROWS, name="other", **shared)
    echo_job.spec["sink"]["on_existing"] = "take_over"
    assert echo_job.run(ROWS, **shared).origins["cached"] == len(ROWS)
    found = forgotten(echo_job, 7, **shared)
    assert "cache" not in counted(found)
    assert any("repeat this in an hour" in each for each in found.left)
    for segment in (tmp_path / "state/cache/tickets").glob("*.jsonl"):
        os.utime(segment, (0, 0))
    assert counted(forgotten(echo_job, 7, fingerprints=["0" * 64], **shared)) == {"cache": 1}
    assert mentions(tmp_path / "state", "<7>") == []


def test_nothing_is_removed_before_the_end_of_batch_inference(echo_job, tmp_path):
    echo_job.run(ROWS)
    spec = JobSpec.parse(echo_job.spec)
    write_manifest(spec, BatchManifest(prompts="", created_at=0.0))
    before = files(tmp_path)
    with pytest.raises(JobFailedError, match="its batch inference has not ended"):
        forgotten(echo_job, 7)
    assert files(tmp_path).keys() == before.keys()
    write_manifest(spec, BatchManifest(prompts="", created_at=0.0, is_published=True))
    assert counted(forgotten(echo_job, 7))["batch inference"] == 1


def test_rows_of_the_dead_letter_without_a_key_are_named(job):
    job.run([*ROWS[:2], "no json <9>"])
    assert any("could not be read, and so have no key" in each for each in forgotten(job, 1).left)


def test_an_audit_knows_the_fingerprints_of_earlier_prompts(echo_job, tmp_path):
    audit = {"safety": {"audit": {"uri": str(tmp_path / "audit")}}}
    echo_job.run(ROWS, **audit)
    echo_job.run(ROWS, prompt={"template": "Another: {{ row.text }}"}, **audit)
    assert counted(forgotten(echo_job, 7, **audit))["journal"] == 2
    assert mentions(tmp_path, "<7>") == []


def test_an_audit_names_rows_with_personal_data_in_their_key(echo_job, tmp_path, monkeypatch):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "the secret of the tests")
    safety = {"safety": {"privacy": {}, "audit": {"uri": str(tmp_path / "audit")}}}
    echo_job.run([{"id": "ann@example.com", "text": "first <7>"}], **safety)
    echo_job.run([{"id": "ann@example.com", "text": "second <7>"}], **safety)
    assert counted(forgotten(echo_job, "ann@example.com", **safety))["journal"] == 2
    assert mentions(tmp_path / "out", "<7>") == []


def test_nothing_is_removed_while_the_job_runs(job, sandbox, monkeypatch):
    monkeypatch.setattr(lease, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.05)
    hold = sandbox.faults.hold("gemini.generateContent", "words")
    running = threading.Thread(target=job.run, args=(ROWS,))
    running.start()
    try:
        while not hold.waiting:
            running.join(0.05)
        with pytest.raises(JobFailedError, match="is being run by another process"):
            forgotten(job, 7)
    finally:
        hold.release()
        running.join()


def test_the_command_prints_what_was_removed_and_what_was_not_reached(echo_job, tmp_path):
    echo_job.run(ROWS)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(echo_job.spec))
    result = CliRunner().invoke(llmbeam, ["forget", str(path), "--key", "7"])
    assert result.exit_code == 0, result.output
    assert "1 answer " in result.output
    assert "Not reached:\n" in result.output
    assert "abuse monitoring" in result.output
    assert CliRunner().invoke(llmbeam, ["forget", str(path)]).exit_code == 2
    path.write_text("{}")
    assert CliRunner().invoke(llmbeam, ["forget", str(path), "--key", "7"]).exit_code == 2


texts = st.sampled_from(["alpha beta", "gamma", "delta epsilon", "zeta", "eta", "theta"])


@pytest.mark.full
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(texts, min_size=2, max_size=8), chosen=st.sets(st.integers(0, 7), min_size=1, max_size=3))
def test_any_rows_are_forgotten_unless_another_row_has_their_prompt(tmp_path_factory, texts, chosen):
    directory = tmp_path_factory.mktemp("job")
    job = Job(directory, {"type": "echo"})
    rows = [{"id": number, "text": f"<{text}>"} for number, text in enumerate(texts)]
    before = job.run(rows)
    forgotten(job, *chosen)
    left = {row["text"] for row in rows if row["id"] not in chosen}
    gone = {row["text"] for row in rows if row["id"] in chosen} - left
    assert mentions(directory, *gone) == []
    answers = read_lines(job.out / "answers-00000-of-00001.jsonl") if len(before.answers) else []
    assert answers == [row for row in before.answers if row["id"] not in chosen]
    origins = job.run(rows).origins
    assert origins["fresh"] == len(gone)
