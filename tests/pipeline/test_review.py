"""Answers of a run are sampled, reviewed and become golden rows, with which the same job is evaluated."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.__main__ import main
from airflow_provider_llmbeam.pipeline.measure.evaluate import evaluate
from airflow_provider_llmbeam.pipeline.measure.review import add_golden_rows, sample_answers
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.evaluation import AnswerSample, Evaluation, GoldenAddition

MOODS = ["good", "bad", "mixed"]
PROMPT = {
    "template": "What is the mood of this review?\n\n{{ row.text }}",
    "output_schema": {
        "type": "object",
        "properties": {"mood": {"type": "string", "enum": MOODS}},
        "required": ["mood"],
    },
}
ROWS = [{"id": number, "text": f"review number {number}", "note": None} for number in range(60)]


@pytest.fixture
def spec(job):
    """A job that has answered its rows."""
    job.spec |= {"prompt": PROMPT, "state_uri": f"{job.directory}/state"}
    job.run(ROWS)
    return JobSpec.parse(job.spec)


def sampled(spec, **sample):
    found = sample_answers(spec, AnswerSample.parse(sample))
    return [json.loads(review) for review in found.pop("reviews")], found


def verdict(review, *, is_accepted=True, **values):
    given = {name: field["value"] for name, field in review["form"].items()}
    people = {"reviewed_by": "ada", "reviewed_at": "2026-11-25T10:00:00+00:00"}
    verdict = {"review_uri": review["review_uri"], "key": review["key"], "is_accepted": is_accepted}
    return verdict | {"values": given | values, **people}


def add(spec, uri, *verdicts):
    return add_golden_rows(
        spec, GoldenAddition.parse({"golden_uri": str(uri), "verdicts": [*map(json.dumps, verdicts)]})
    )


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def other(mood):
    return MOODS[(MOODS.index(mood) + 1) % 3]


def test_verdicts_become_a_golden_set_that_an_evaluation_reads(spec, job, sandbox):
    sent = len(sandbox.requests)
    reviews, found = sampled(spec, rows=12, stratify_by="mood", columns=["text"])
    assert dict(found["labels"]) == dict.fromkeys(MOODS, 4)
    assert {review["row"]["text"] for review in reviews} <= {row["text"] for row in ROWS}
    assert [row["expected_mood"] for row in lines(found["review_uri"])] == [
        review["form"]["mood"]["value"] for review in reviews
    ]
    right, wrong, unclear, *_ = reviews
    corrected = other(wrong["form"]["mood"]["value"])
    golden = job.directory / "golden" / "reviewed.jsonl"
    added = add(spec, golden, verdict(right), verdict(wrong, mood=corrected), verdict(unclear, is_accepted=False))
    counts = {"accepted": 1, "corrected": 1, "left_out": 1}
    assert added == {"golden_uri": str(golden), "rows": 2, **counts}
    first, second = lines(golden)
    assert first["llmbeam_review"] == {"verdict": "accepted", "by": "ada", "at": "2026-11-25T10:00:00+00:00"}
    assert second["llmbeam_review"]["verdict"] == "corrected"
    assert second["expected_mood"] == corrected
    source = {"uri": str(golden), "key": "id"}
    report = evaluate(spec, Evaluation.parse({"golden": source, "metrics": {"mood": "exact"}}))
    assert (report.rows, report.scores["mood"].score) == (2, 0.5)
    assert [row.key for row in report.wrong] == [wrong["key"]]
    assert len(sandbox.requests) == sent, "the review and the evaluation send nothing"


def test_a_row_of_the_golden_set_is_not_reviewed_again_and_a_later_verdict_replaces_the_earlier_one(spec, job):
    golden = job.directory / "golden.jsonl"
    source = {"uri": str(golden), "key": "id"}
    first, _ = sampled(spec, rows=5, golden=source)
    assert first == sampled(spec, rows=5, golden=source)[0], "a retry selects the same rows"
    add(spec, golden, *map(verdict, first))
    second, _ = sampled(spec, rows=5, golden=source)
    assert not {review["key"] for review in first} & {review["key"] for review in second}
    assert {review["key"] for review in sampled(spec, rows=5, seed=1)[0]} != {review["key"] for review in first}
    again, _ = sampled(spec, rows=5)
    corrected = other(again[0]["form"]["mood"]["value"])
    assert add(spec, golden, verdict(again[0], mood=corrected))["rows"] == 5
    rows = {row["id"]: row for row in lines(golden)}
    assert rows[json.loads(again[0]["key"])["id"]]["expected_mood"] == corrected
    assert Counter(row["llmbeam_review"]["verdict"] for row in rows.values()) == {"accepted": 4, "corrected": 1}
    assert sampled(spec, rows=100, golden=source)[1]["rows"] == 55
    golden.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    reviews, found = sampled(spec, golden=source)
    assert (reviews, found["rows"]) == ([], 0)


@pytest.mark.parametrize("place", ["local", pytest.param("gs", marks=pytest.mark.full)])
def test_processes_that_add_to_one_golden_set_at_the_same_time_lose_no_row(place, request, spec, job):
    reviews, _ = sampled(spec, rows=3)
    golden = job.directory / "golden.jsonl"
    if place == "gs":
        request.getfixturevalue("google")
        golden = "gs://rows/golden/reviewed.jsonl"
    with ThreadPoolExecutor() as pool:
        [*pool.map(lambda review: add(spec, golden, verdict(review)), reviews)]
    rows = storage.read(str(golden)).splitlines()
    keys = {json.dumps({"id": json.loads(row)["id"]}) for row in rows}
    assert keys == {review["key"] for review in reviews}
    source = {"uri": str(golden), "key": "id"}
    (again, *_), _ = sampled(spec, rows=1, golden=source)
    assert again["key"] not in keys


@pytest.mark.parametrize("name", ["golden.csv", "golden.jsonl"])
def test_a_row_is_not_reviewed_again_if_the_golden_set_has_its_key_as_a_text(name, echo_job):
    echo_job.spec["prompt"] = {"template": "{{ row.text }}"}
    echo_job.run(ROWS[:4])
    golden = echo_job.directory / name
    golden.write_text("id\n0\n2\n" if name.endswith("csv") else '{"id": "0"}\n{"id": 2.0}\n')
    reviews, _ = sampled(JobSpec.parse(echo_job.spec), rows=2, golden={"uri": str(golden), "key": "id"})
    assert {review["key"] for review in reviews} == {'{"id": 1}', '{"id": 3}'}


def test_texts_are_reviewed_as_a_whole(job):
    job.run(ROWS[:5])
    spec = JobSpec.parse(job.spec)
    (review, *_), _ = sampled(spec, rows=2)
    assert review["form"]["answer"]["schema"]["type"] == "string"
    golden = job.directory / "golden.jsonl"
    assert add(spec, golden, verdict(review, answer="Right."))["corrected"] == 1
    evaluation = {"golden": {"uri": str(golden), "key": "id"}, "metrics": {"answer": "exact"}}
    assert evaluate(spec, Evaluation.parse(evaluation)).scores["answer"].score == 0


def test_an_answer_that_is_null_is_reviewed_as_null(echo_job):
    schema = {"type": ["string", "null"]}
    echo_job.spec |= {"prompt": {"template": "{{ row.text and 'null' }}", "output_schema": schema}}
    echo_job.run(ROWS[:1])
    spec = JobSpec.parse(echo_job.spec)
    (review,), found = sampled(spec, rows=1)
    assert review["form"]["answer"]["value"] is None
    assert [row["expected_answer"] for row in lines(found["review_uri"])] == [None]


def test_equal_numbers_are_one_label_and_true_is_another_one_than_1(echo_job):
    echo_job.spec["prompt"] = {
        "template": "{{ row.text }}",
        "output_schema": {"type": "object", "properties": {"grade": {"type": ["number", "boolean"]}}},
    }
    grades = ["4", "4.0", "1", "1.0", "true"] * 4
    rows = [{"id": number, "text": f'{{"grade": {grade}}}'} for number, grade in enumerate(grades)]
    echo_job.run(rows)
    _, found = sampled(JobSpec.parse(echo_job.spec), rows=6, stratify_by="grade")
    assert dict(found["labels"]) == {"4": 2, "1": 2, "true": 2}


def test_what_does_not_fit_is_refused_and_nothing_is_written(spec, job):
    golden = job.directory / "golden.jsonl"
    (review, *_), _ = sampled(spec)
    for sample, message in (
        ({"stratify_by": "moods"}, r"`stratify_by`: the answers have no field 'moods'; did you mean `mood`\?"),
        ({"fields": ["tone"]}, "`fields`: the answers have no field 'tone'"),
        ({"columns": ["body"]}, "`columns`: no row has the column 'body'"),
    ):
        with pytest.raises(JobSpecError, match=message):
            sampled(spec, **sample)
    with pytest.raises(
        JobSpecError, match=r"has no answer to these rows\. Give this task the arguments of the run"
    ):
        sampled(JobSpec.parse(job.spec | {"name": "another"}))
    model = job.spec["model"] | {"name": "gemini-embedding-001"}
    embeds = JobSpec.parse(job.spec | {"task": "embed", "prompt": "{{ row.text }}", "model": model})
    with pytest.raises(JobSpecError, match="cannot be compared with expected answers"):
        sampled(embeds)
    for given, message in (
        (verdict(review, mood="fine"), r"does not match `prompt.output_schema`: at \$.mood: 'fine' is not one of"),
        (verdict(review, tone="warm"), "`verdicts`: the answers have no field 'tone'"),
        (
            verdict(review) | {"key": '{"id": 99}'},
            r"has no row \{\"id\": 99\}; it was replaced or deleted since the review",
        ),
        (
            verdict(review) | {"review_uri": f"{job.directory}/state/gone/review.jsonl"},
            "the sample '.*/state/gone/review.jsonl' has no row",
        ),
    ):
        with pytest.raises(JobSpecError, match=message):
            add(spec, golden, given)
    too_many = "".join(json.dumps({"id": number}) + "\n" for number in range(1000, 6000))
    golden.write_text(too_many)
    with pytest.raises(JobSpecError, match="would have 5,001 rows, and an evaluation answers at most 5,000"):
        add(spec, golden, verdict(review))
    assert golden.read_text() == too_many


@pytest.mark.parametrize(
    "named", ["secret.jsonl", "{state}/../secret.jsonl", "{state}/../review.jsonl", "{state}/*/review.jsonl"]
)
def test_a_forged_verdict_reads_no_other_file(spec, job, named):
    (review,), _ = sampled(spec, rows=1)
    secret = json.dumps({**json.loads(review["key"]), "text": "secret"})
    for name in ("secret.jsonl", "review.jsonl"):
        (job.directory / name).write_text(f"{secret}\n")
    golden = job.directory / "golden.jsonl"
    uri = named.format(state=f"{job.directory}/state") if named[0] == "{" else str(job.directory / named)
    with pytest.raises(JobSpecError, match=r"a verdict names .* as the sample of its answer; expected "):
        add(spec, golden, verdict(review) | {"review_uri": uri})
    assert not golden.exists()


def test_a_sample_whose_file_was_named_is_read_if_the_golden_set_names_it_too(spec, job):
    uri, golden = f"{job.directory}/own.jsonl", f"{job.directory}/golden.jsonl"
    (review,), _ = sampled(spec, rows=1, review_uri=uri)
    addition = {"golden_uri": golden, "verdicts": [json.dumps(verdict(review))]}
    with pytest.raises(JobSpecError, match="another `review_uri`, name it here, too"):
        add_golden_rows(spec, GoldenAddition.parse(addition))
    assert add_golden_rows(spec, GoldenAddition.parse(addition | {"review_uri": uri}))["rows"] == 1


def test_the_command_line_samples_answers_and_adds_golden_rows(spec, job, capsys):
    def run(step, data):
        (job.directory / "job.json").write_text(json.dumps(job.spec))
        (job.directory / "step.json").write_text(json.dumps(data))
        options = ["--spec", f"{job.directory}/job.json", f"--step={step}", f"--input={job.directory}/step.json"]
        assert main(options) == 0
        return json.loads(capsys.readouterr().out)

    found = run("sample_answers", {"rows": 3})
    verdicts = [verdict(json.loads(review)) for review in found["reviews"]]
    golden = f"{job.directory}/golden.jsonl"
    assert run("add_golden", {"golden_uri": golden, "verdicts": verdicts})["accepted"] == 3
