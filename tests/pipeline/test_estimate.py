"""Estimates of jobs, compared with the actual values."""

from __future__ import annotations

import ast
import bz2
import errno
import gzip
import json
import random
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path

import pytest
from llmbeam_sandbox import Fault, ModelSettings, Quota, Sandbox

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, PermanentFailureError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.__main__ import main
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.spec import JobSpec
from tests.pipeline.conftest import estimate

GENERATE = "gemini.generateContent"
CATALOGUE = {
    "system": "You catalogue Python packages. Judge only by the README you are given.",
    "template": "README of {{ row.id }}:\n\n{{ row.text }}",
    "output_schema": {
        "type": "object",
        "properties": {
            "category": {"type": "string", "enum": ["cloud", "data", "web", "other"]},
            "summary": {"type": "string", "maxLength": 200},
        },
        "required": ["category", "summary"],
    },
}


def pieces(text):
    """Counts tokens like the tokenizer of a model: by pieces of words, signs and digits."""
    return len(re.findall(r"[A-Za-z]{1,5}|\d|[^\x00-\x7f]|[^\w\s]|\n+", text))


def readmes():
    """Returns the READMEs of the installed packages: long and short texts."""
    found = {each.metadata["Name"]: each for each in distributions()}
    return {
        name: each.metadata.get_payload() or each.metadata.get("Description", "") for name, each in found.items()
    }


def docstrings():
    """Returns the docstrings of functions and classes of the standard library: short texts."""
    found = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-j]*.py")):
        for node in ast.walk(ast.parse(path.read_text(errors="replace"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                found[f"{path.stem}.{node.name}"] = text
    return dict(list(found.items())[:600])


def entry_points():
    """Returns records as JSON: digits and signs rather than words."""
    found = {}
    for each in distributions():
        files = [{"path": str(file), "size": file.size} for file in (each.files or ())[:40]]
        found[each.metadata["Name"]] = json.dumps({"version": each.version, "files": files})
    return found


SETS = {
    "READMEs, catalogued": (readmes, CATALOGUE),
    "docstrings, explained": (docstrings, {"template": "Explain this to a beginner:\n{{ row.text }}"}),
    "records of files, summed up": (
        entry_points,
        {"system": "You get JSON.", "template": "Which of these files matter?\n{{ row.text }}"},
    ),
}


IN_THE_LOOP = "docstrings, explained"


@pytest.fixture(scope="module")
def real_model():
    with Sandbox(models=ModelSettings(tokenizer=pieces)) as running:
        yield running


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name not in IN_THE_LOOP)) for name in SETS]
)
def test_the_estimate_is_within_15_percent_of_the_truth_for_real_prompts(
    make_job, tmp_path, real_model, name, capsys
):
    texts, prompt = SETS[name]
    rows = [{"id": key, "text": text} for key, text in texts().items()]
    job = make_job(tmp_path, real_model)
    job.spec |= {"prompt": prompt}
    job.write(rows)
    real_model.reset()
    estimate = make_estimate(JobSpec.parse(job.spec))
    estimated = {"input": estimate.input_tokens, "output": estimate.output_tokens}
    ended = job.run()
    truth = {kind: ended.report["tokens"][kind] for kind in estimated}
    ratios = {kind: truth[kind] / estimated[kind] for kind in estimated}
    guess = sum(len(row["text"].encode()) // 4 for row in rows)
    sent = estimate.sample_usage.requests
    with capsys.disabled():
        print(f"\n{name}: {len(rows)} rows, {sent} prompts sent, own error ± {estimate.error_ratio:.1%}")
        for kind, ratio in ratios.items():
            print(f"  {kind:6} {estimated[kind]:9,} estimated, {truth[kind]:9,} billed, ratio {ratio:.3f}")
        print(f"  bytes / 4 would have been {guess:,}")
    assert ratios == {kind: pytest.approx(1, abs=0.15) for kind in estimated}
    compared = ended.report["estimate"]
    assert compared["input_tokens"]["ratio"] == pytest.approx(ratios["input"], abs=0.01)
    assert compared["output_tokens"]["ratio"] == pytest.approx(ratios["output"], abs=0.01)
    assert max(real_model.requests.paid().values()) == 1, "an answer of the estimate was paid for twice"


def numbered(count, **more):
    return [{"id": number, "text": f"row number {number}"} | more for number in range(count)]


def test_rows_are_counted_by_kind(job, sandbox):
    rows = [*numbered(50), {"id": 50, "text": "row number 7"}, {"id": 51}, {"text": "no key"}, "[[["]
    job.write(rows)
    found = make_estimate(JobSpec.parse(job.spec), sample_size=10)
    assert (found.rows, found.requests, found.failed) == (54, 40, 3)
    assert found.duplicates + found.resumed == 11
    assert found.demand.rows == 40
    assert sandbox.stats()["methods"][GENERATE]["calls"] == found.sample_usage.requests == 10
    assert not list(job.out.glob("answers*"))


def test_a_second_estimate_sends_nothing(job, sandbox):
    job.write(numbered(100))
    spec = JobSpec.parse(job.spec)
    first, second = make_estimate(spec, sample_size=20), make_estimate(spec, sample_size=20)
    assert (first.sample_usage.requests, second.sample_usage.requests) == (20, 0)
    assert (first.requests, second.requests) == (80, 80)
    assert second.input_tokens == first.input_tokens
    assert len(sandbox.requests) == 20


def test_without_a_sample_the_output_tokens_are_an_upper_bound(job, sandbox):
    job.write(numbered(10))
    found = make_estimate(JobSpec.parse(job.spec | {"generation": {"max_output_tokens": 100}}), sample_size=0)
    assert found.output_is_upper_bound
    assert (found.output_tokens, found.error_ratio, found.latency_seconds) == (1000, None, None)
    assert found.cost_usd_range[0] < found.cost_usd == found.cost_usd_range[1]
    assert len(sandbox.requests) == 0


def test_without_a_sample_long_prompts_have_their_own_price(job, sandbox):
    job.write([{"id": 1, "text": "word " * 2_000}, {"id": 2, "text": "word"}])
    price = {"input_usd_per_million_tokens": 1.0, "output_usd_per_million_tokens": 8.0}
    long = {**price, "above_input_tokens": 1_000, "input_usd_per_million_tokens": 2.0}
    changes = {"limits": {"price": {**price, "long_prompts": long}}, "generation": {"max_output_tokens": 1}}
    found = make_estimate(JobSpec.parse(job.spec | changes), sample_size=0)
    assert found.input_tokens > 2_000
    assert found.cost_usd == pytest.approx(2.0 * found.input_tokens / 1e6, rel=0.02)


def test_the_time_follows_from_the_tightest_limit(job, sandbox):
    job.write(numbered(120))
    times = {}
    for limits in ({"requests_per_minute": 10}, {"tokens_per_minute": 60}, {"max_in_flight": 1}):
        found = make_estimate(JobSpec.parse(job.spec | {"limits": limits | {"max_in_flight": 1}}), sample_size=1)
        times[found.limited_by] = found.duration_seconds
    assert times["requests_per_minute"] == pytest.approx(119 * 6 + 2, abs=1)
    assert times["tokens_per_minute"] > times["requests_per_minute"]
    assert times["in_flight"] < 20


def test_a_large_source_is_read_in_portions(job, sandbox):
    job.write([{"id": number, "text": "word " * (number % 50)} for number in range(20_000)])
    spec = JobSpec.parse(job.spec)
    whole, part = make_estimate(spec, sample_size=0), make_estimate(spec, sample_size=0, max_bytes=200_000)
    assert not whole.is_sampled
    assert part.is_sampled
    assert part.rows == pytest.approx(20_000, rel=0.05)
    # Only equal prompts within the portion that was read are known: all but fifty of these rows are equal.
    assert part.requests >= whole.requests == 50


def test_by_rounding_no_row_is_answered_already(job, sandbox):
    found = []
    for count in range(800, 1400, 20):
        texts = ["same" if number % 3 == 0 else f"text {number}" for number in range(count)]
        job.write([{"id": each, "text": text * 30} if each % 7 else "[[" for each, text in enumerate(texts)])
        found.append(make_estimate(JobSpec.parse(job.spec), 0, max_bytes=96_000))
    assert any(each.is_sampled for each in found)
    for each in found:
        assert each.rows == each.requests + each.duplicates + each.resumed + each.failed
        assert each.resumed == 0


def test_a_sampled_answer_is_counted_once_however_large_the_source(job, sandbox):
    job.write([{"id": number, "text": f"row {number} " + "word " * (number % 50)} for number in range(20_000)])
    spec = JobSpec.parse(job.spec)
    for _ in range(2):  # the second estimate finds the answers of the first
        found = make_estimate(spec, max_bytes=200_000)
        assert (found.is_sampled, found.resumed) == (True, 32)
        assert found.requests == found.rows - 32
    assert len(sandbox.requests) == 32


def test_failed_prompts_are_part_of_the_projection(job, sandbox):
    refused = Fault(kind="error", http_status=400, message="no")
    sandbox.faults.every(GENERATE, 3, refused)
    job.write([{"id": number, "text": f"row {number} " + "word " * 20} for number in range(200)])
    estimate = make_estimate(JobSpec.parse(job.spec))
    report = job.run().report
    assert estimate.sample_usage.failed == 10
    assert report["tokens"]["input"] == pytest.approx(estimate.input_tokens, rel=0.15)
    assert report["estimate"]["requests"]["actual"] == estimate.requests
    assert report["estimate"]["input_tokens"]["ratio"] == pytest.approx(1, abs=0.15)


def test_the_error_of_an_unwritable_estimate_has_its_tokens(job, sandbox):
    job.write(numbered(20))
    (job.out / "estimate.json" / "in the way").mkdir(parents=True)
    with pytest.raises(JobFailedError, match=r"could not be written .* 5 prompts .* were billed"):
        estimate(JobSpec.parse(job.spec), 5)
    assert len(sandbox.requests) == 5


def test_the_error_of_an_unrecorded_sample_warns_of_billing(job, sandbox, monkeypatch):
    create = storage.create
    job.write(numbered(20))

    def full(uri):
        file = create(uri)
        if "probe" not in uri:  # the disk fills up after that

            def refuse(lines):
                raise OSError(errno.ENOSPC, "No space left on device", uri)

            monkeypatch.setattr(file, "writelines", refuse)
        return file

    monkeypatch.setattr(storage, "create", full)
    with pytest.raises(JobFailedError, match=r"No space left on device.* answers of this batch were paid for"):
        estimate(JobSpec.parse(job.spec), 5)


def test_a_journal_that_cannot_be_written_is_refused_before_a_request(job, sandbox):
    job.write(numbered(20))
    journal = Path(JobSpec.parse(job.spec).paths.journal_uri)
    journal.parent.mkdir(parents=True)
    journal.write_text("in the way")
    with pytest.raises(JobSpecError, match=r"File exists.*Nothing was sent or billed"):
        estimate(JobSpec.parse(job.spec), 5)
    assert len(sandbox.requests) == 0


@pytest.mark.parametrize("file_format", ["csv", "parquet", "avro"])
def test_portions_of_other_formats_represent_the_source(job, tmp_path, file_format):
    rows = [
        {"id": number, "text": f'He said "{number}",\nand left. ' * (1 + number % 9)} for number in range(8_000)
    ]
    path = tmp_path / f"rows.{file_format}"
    write(path, rows)
    source = {"uri": str(path), "key": ["id"], "format": file_format}
    spec = JobSpec.parse(job.spec | {"source": source})
    whole, part = make_estimate(spec, sample_size=0), make_estimate(spec, sample_size=0, max_bytes=300_000)
    assert (whole.rows, whole.is_sampled, part.is_sampled) == (8_000, False, True)
    assert part.rows == pytest.approx(8_000, rel=0.1)
    assert part.input_tokens == pytest.approx(whole.input_tokens, rel=0.1)


@pytest.mark.parametrize("characters", [400, 900, 1_100])
def test_portions_of_csv_files_represent_rows_that_are_as_long_as_a_portion(job, tmp_path, characters):
    path = tmp_path / "rows.csv"
    write(path, [{"id": number, "text": 'é"\n' * (characters // 4)} for number in range(2_000)])
    spec = JobSpec.parse(job.spec | {"source": {"uri": str(path), "key": ["id"]}})
    found = make_estimate(spec, sample_size=0, max_bytes=64 * 1_000)
    assert (found.is_sampled, found.failed) == (True, 0)
    assert found.rows == pytest.approx(2_000, rel=0.15)


@pytest.mark.parametrize(("ending", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_portions_of_compressed_files_represent_the_source(job, tmp_path, ending, compress):
    numbers = random.Random(0)
    for file in ("a", "b"):
        rows = [{"id": f"{file}{row}", "text": f"{numbers.random()} " * 20} for row in range(8_000)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{file}.jsonl.{ending}").write_bytes(compress(text.encode()))
    spec = JobSpec.parse(job.spec | {"source": {"uri": str(tmp_path / "*.jsonl.*"), "key": ["id"]}})
    part = make_estimate(spec, sample_size=0, max_bytes=600_000)
    assert part.is_sampled
    assert part.rows == pytest.approx(16_000, rel=0.1)


@pytest.mark.parametrize("sign", ["\u2028", "\x85", "\x1c"])
def test_a_name_in_a_csv_header_may_have_any_sign(job, tmp_path, sign):
    path = tmp_path / "rows.csv"
    rows = "".join(f"{number},a,row number {number}\n" for number in range(8_000))
    path.write_text(f"comment{sign}\nid,no{sign}te,text\n{rows}")
    source = {"uri": str(path), "key": ["id"], "csv": {"skiprows": 1}}
    part = make_estimate(JobSpec.parse(job.spec | {"source": source}), sample_size=0, max_bytes=50_000)
    assert (part.is_sampled, part.failed) == (True, 0)


def write(path, rows):
    if path.suffix == ".csv":
        import csv

        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["id", "text"])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=500)
    else:
        import fastavro

        fields = [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]
        with path.open("wb") as file:
            schema = {"type": "record", "name": "row", "fields": fields}
            fastavro.writer(file, schema, rows, sync_interval=2_000)


@pytest.mark.full
def test_a_storm_of_rejections_costs_time_and_no_row(make_job, tmp_path):
    with Sandbox(models=ModelSettings(quota=Quota(requests_per_minute=600, burst_seconds=0.1))) as busy:
        job = make_job(tmp_path, busy)
        job.write(numbered(60))
        found = make_estimate(JobSpec.parse(job.spec), sample_size=20)
    assert (found.sample_usage.requests, found.sample_usage.failed, found.resumed) == (20, 0, 20)


def test_a_model_that_answers_nothing_gives_no_estimate(job, sandbox):
    sandbox.faults.every(GENERATE, 1, Fault(kind="error", http_status=400, message="no such thing"))
    job.write(numbered(5))
    with pytest.raises(PermanentFailureError, match=r"none of 5 prompts .*no such thing.* 0 tokens were billed"):
        make_estimate(JobSpec.parse(job.spec))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "has no row to send"),
        ([{"id": 1}], r"No prompt could be made of 1 of 1 rows, e\.g\.: .*no column 'text'"),
    ],
)
def test_a_source_without_prompts_is_refused(job, sandbox, rows, words):
    job.write(rows)
    with pytest.raises(JobSpecError, match=words):
        make_estimate(JobSpec.parse(job.spec))
    assert len(sandbox.requests) == 0


def test_two_rows_with_one_key_are_refused_before_anything_is_sent(job, sandbox):
    job.write([*numbered(3), {"id": 1, "text": "again"}])
    with pytest.raises(JobSpecError, match="key"):
        make_estimate(JobSpec.parse(job.spec))
    assert len(sandbox.requests) == 0


def test_an_estimate_above_the_budget_is_a_warning(job, sandbox, caplog):
    job.write(numbered(50))
    spec = JobSpec.parse(job.spec | {"limits": {"budget_usd": 0.00001}})
    with caplog.at_level("WARNING", "llmbeam"):
        found = make_estimate(spec, sample_size=0)
    assert found.exceeds_budget
    assert "costs more than its budget allows ($0.00001)" in caplog.text


@pytest.mark.parametrize("text", ["{", '{"version": 1}', "[]"])
def test_an_incomplete_estimate_does_not_fail_the_job(job, sandbox, text):
    job.write(numbered(3))
    job.out.mkdir()
    (job.out / "estimate.json").write_text(text)
    assert job.run().report["estimate"] is None


def test_the_estimate_of_another_job_is_not_compared(job, sandbox):
    job.write(numbered(3))
    make_estimate(JobSpec.parse(job.spec | {"name": "another"}), sample_size=0)
    assert job.run().report["estimate"] is None


def test_the_estimate_from_before_a_run_is_compared_with_the_run_of_its_task_and_logical_date(job, sandbox):
    """That of `llmbeam estimate --date` was below the name of a manual run, and a scheduled one found none."""
    job.write(numbered(40))
    state = {"state_uri": f"{job.directory}/state", "sink": {"uri": f"{job.directory}/elsewhere"}}
    make_estimate(JobSpec.parse(job.spec | state | {"name": "planned"}), sample_size=0)
    run = {"dag_id": "shop", "task_id": "ask", "run_id": "scheduled__1", "names_job": True}
    assert job.run(**state, airflow_run=run).report["estimate"] is None
    assert job.run(**state, airflow_run={**run, "planned_job": "planned"}).report["estimate"]["input_tokens"]


def test_the_command_line_logs_the_estimate_and_writes_it_as_json(job, sandbox, tmp_path):
    job.write(numbered(40))
    spec, sample, result = (tmp_path / f"{name}.json" for name in ("spec", "sample", "result"))
    spec.write_text(json.dumps(job.spec | {"limits": {"requests_per_minute": 600}}))
    sample.write_text('{"sample_size": 5}')
    options = [f"--spec={spec}", "--step=estimate", f"--input={sample}", f"--result={result}"]
    command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", *options]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert "Rows      40 = 35 requests + 0 duplicate + 5 answered already + 0 for the dead letter" in lines
    assert "as `limits.requests_per_minute` allows no more" in lines
    assert json.loads(result.read_text())["result"]["requests"] == 35
    sample.write_text('{"sample_size": -1}')
    assert main(options) == 2
    assert "`sample_size`" in json.loads(result.read_text())["error"]["message"]
