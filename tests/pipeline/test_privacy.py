"""Personal data is in the sink and nowhere else, with a model that copies its prompt and with ones that do not."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError, PermanentFailureError
from airflow_provider_llmbeam.pipeline.batch_inference import decide
from airflow_provider_llmbeam.pipeline.batch_inference.run import PILOT_ROWS, BatchInference
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.compare import compare
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.pipeline.measure.evaluate import evaluate
from airflow_provider_llmbeam.pipeline.measure.forget.run import forget
from airflow_provider_llmbeam.pipeline.measure.preview import make_preview
from airflow_provider_llmbeam.pipeline.measure.review import sample_answers
from airflow_provider_llmbeam.pipeline.transforms import publish
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.evaluation import AnswerSample, Comparison, Evaluation, PreviewSample
from airflow_provider_llmbeam.spec.safety import RowsToForget
from tests.fates import FATES
from tests.leaks import CopyingModel, leaked
from tests.pipeline.conftest import read_lines
from tests.pipeline.private_jobs import job_of
from tests.pipeline.private_jobs import leaks as leaks_of

SECRET = "the secret of the tests"
#: What no file but the answers may have, however it is written.
PLANTED = (
    "ann@example.com",
    "ann%40example",
    "9018207",
    "4111 1111",
    "4111111111111111",
    "DE89",
    "10.1.2.3",
    "bob@mail",
)
ROWS: list[Any] = [
    {"id": 1, "text": "Write to ann@example.com, or call +49 30 9018207."},
    {"id": 2, "text": "Card 4111 1111 1111 1111 of ann@example.com"},
    {"id": 3, "text": "nothing"},
    {"id": 4, "text": "Card 4111 1111 1111 1111 of ann@example.com"},
    {"id": "bob@mail.internal", "text": "DE89 3704 0044 0532 0130 00", "note": "from 10.1.2.3"},
    {"id": 6, "txt": "ann@example.com"},
    "ann@example.com is no row",
]


def leaks(directory: Path, *besides: Path) -> list[tuple[str, str]]:
    """Returns the files with planted values."""
    return leaks_of(directory, PLANTED, *besides)


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", SECRET)


@pytest.fixture
def private_job(echo_job):
    # All rows and answers are in the report, and those of spans.
    echo_job.spec |= {"safety": {"privacy": {}}, "traces": {"include_text": True, "sample_ratio": 1}}
    return echo_job


def test_a_model_that_copies_gets_all_values_restored_and_no_file_has_them(private_job, caplog):
    caplog.set_level(logging.DEBUG)
    ended = private_job.run(ROWS[:5], sink={"uri": str(private_job.out), "passthrough": ["note"]})
    assert {row["id"]: row["answer"] for row in ended.answers} == {
        row["id"]: f"Say it: {row['text']}" for row in ROWS[:5]
    }
    assert {row["note"] for row in ended.answers} == {None, "from 10.1.2.3"}
    assert leaks(private_job.directory, private_job.source) == []
    assert [value for value in PLANTED if value in caplog.text] == []
    assert ended.report["privacy"] == {
        "masked": {"CREDIT_CARD": 2, "EMAIL": 4, "IBAN": 1, "IP_ADDRESS": 1, "PHONE": 1},
        "issued": 7,
        "returned": 7,
        "lost": 0,
        "altered": 0,
        "invented": 0,
        "repaired": 0,
        "inspection": None,
    }
    assert ended.origins == Counter(fresh=4, duplicate=1), "equal prompts are still sent once"
    assert "Personal data" in (private_job.out / "report.html").read_text()
    spans = ended.report["traced_rows"]
    assert len(spans) == 4
    assert all("<" in span["row"] + span["answer"] or "nothing" in span["row"] for span in spans)


def test_the_model_receives_no_plain_value_and_an_answer_in_json_is_restored(tmp_path):
    schema = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}

    def write(prompt: str) -> str:
        return json.dumps({"who": prompt}).replace("<", "\\u003c")

    with CopyingModel(write) as model:
        job = job_of(tmp_path, model)
        prompt = {"template": "{{ row.text }}", "system": "Of bob@mail.internal", "output_schema": schema}
        ended = job.run(ROWS[:2], prompt=prompt)
        received = b"".join(each.body for each in model.received).decode()
    assert [value for value in PLANTED if value in received] == []
    assert sorted(row["answer"]["who"] for row in ended.answers) == sorted(row["text"] for row in ROWS[:2])
    assert ended.report["privacy"]["returned"] == 4
    assert ended.report["privacy"]["lost"] == 2, "that of the system instruction, once for each row"
    assert leaks(tmp_path, job.source) == []


def test_rows_without_an_answer_are_masked_in_the_dead_letter_and_retried_with_the_same_key(
    private_job, monkeypatch
):
    ended = private_job.run(ROWS)
    assert ended.kinds == Counter(template_error=1, unreadable_row=1)
    assert leaks(private_job.directory, private_job.source) == []
    ended = private_job.run(ROWS[:6])
    retry = {"uri": ended.manifest["dead_letter_uri"], "key": ["id"]}
    prompt = {"template": "Say it: {{ row.txt or row.text }}"}
    merging = {"uri": str(private_job.out), "on_existing": "merge"}

    def again() -> dict[str, Any]:
        return run(JobSpec.parse(private_job.spec | {"source": retry, "prompt": prompt, "sink": merging}))

    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", SECRET + ", rotated")
    with pytest.raises(JobSpecError, match="masked with another key"):
        again()
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", SECRET)
    found = private_job.ended(again())
    assert [row["answer"] for row in found.answers if row["id"] == 6] == ["Say it: ann@example.com"]
    assert [each["id"] for each in found.answers if "@" in str(each["id"])] == ["bob@mail.internal"]
    assert found.dead_letter == []
    assert leaks(private_job.directory, private_job.source) == []


def test_a_vault_of_the_dead_letter_in_the_row_of_a_stranger_is_not_restored(private_job):
    ended = private_job.run([{"id": 1, "txt": "ann@example.com"}, {"id": 2, "text": "x"}])
    (victim,) = ended.dead_letter
    assert isinstance(victim["llmbeam_vault"], str)
    stolen = {"id": 3, "text": victim["txt"], "llmbeam_vault": victim["llmbeam_vault"]}
    ended = private_job.run([stolen, {"id": 2, "text": "x"}])
    assert [row["id"] for row in ended.answers] == [2]
    assert ended.kinds == Counter(personal_data=1)
    assert "ann@" not in json.dumps([ended.answers, ended.dead_letter])


def test_a_row_with_personal_data_in_its_key_leaves_the_dead_letter_when_it_is_answered(private_job):
    rows = [{"id": "bob@mail.internal", "txt": "10.1.2.3"}, {"id": 2, "text": "x"}]
    private_job.write(rows)
    ended = private_job.run()
    assert len(ended.dead_letter) == 1
    assert leaks(private_job.directory, private_job.source) == []
    source = {"uri": ended.manifest["dead_letter_uri"], "key": ["id"]}
    changes = {"source": source, "prompt": {"template": "{{ row.txt }}"}}
    manifest = run(
        JobSpec.parse(private_job.spec | changes | {"sink": {"uri": str(private_job.out), "on_existing": "merge"}})
    )
    found = private_job.ended(manifest)
    assert found.dead_letter == []
    assert {row["id"]: row["answer"] for row in found.answers} == {"bob@mail.internal": "10.1.2.3", 2: "Say it: x"}


def test_a_job_that_ended_before_its_answers_were_published_sends_nothing_again(tmp_path, monkeypatch):
    with CopyingModel() as model:
        job = job_of(tmp_path, model)
        job.write(ROWS[:5])
        with monkeypatch.context() as broken:
            broken.setattr(publish.Publish, "_check", lambda *_: 1 / 0)
            with pytest.raises(LLMBeamError):
                run(JobSpec.parse(job.spec))
        sent = len(model.received)
        ended = job.run()
        assert len(model.received) == sent == 4
    assert ended.origins["resumed"] == 5
    assert "Say it: nothing" in {row["answer"] for row in ended.answers}
    assert f"Say it: {ROWS[1]['text']}" in {row["answer"] for row in ended.answers}
    assert leaks(tmp_path, job.source) == []


def test_the_cache_of_other_jobs_is_used_with_the_same_key_alone(tmp_path, monkeypatch):
    with CopyingModel() as model:

        def day(name: str) -> Any:
            (tmp_path / name).mkdir()
            job = job_of(tmp_path / name, model)
            job.spec |= {"name": name, "state_uri": str(tmp_path / "state"), "cache": {"scope": "all"}}
            return job.run(ROWS[:3])

        assert day("monday").origins == Counter(fresh=3)
        tuesday = day("tuesday")
        assert tuesday.origins == Counter(cached=3)
        monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", SECRET + ", rotated")
        rotated = day("wednesday")
        assert rotated.origins == Counter(fresh=2, cached=1), "the row without personal data"
        for ended in (tuesday, rotated):
            assert {row["answer"] for row in ended.answers} == {f"Say it: {row['text']}" for row in ROWS[:3]}
    assert leaks(tmp_path / "state") == []


ALTERED = "Dear <email_{tag}>, EMAIL_{tag}. "


@pytest.mark.parametrize("on_altered", ["keep", "fail"])
def test_altered_placeholders_are_counted_and_fail_their_row_by_choice(tmp_path, on_altered):
    def write(prompt: str) -> str:
        found = re.search(r"<EMAIL_(\w+)>", prompt)
        return "no mail, but <IBAN_0123>" if found is None else ALTERED.format(tag=found[1])

    with CopyingModel(write) as model:
        job = job_of(tmp_path, model, on_altered=on_altered)
        ended = job.run(ROWS[:3])
    counts = ended.report["privacy"]
    assert ended.kinds == (Counter(invalid_output=2) if on_altered == "fail" else Counter())
    assert (counts["altered"], counts["invented"]) == ((4, 1) if on_altered == "keep" else (0, 1))
    assert not any("ann@" in str(row["answer"]) for row in ended.answers)
    if on_altered == "fail":
        message = ended.dead_letter[0]["llmbeam_error"]["message"]
        assert message.startswith("the model altered a placeholder of personal data in its answer: '<email_")
    assert leaks(tmp_path, job.source) == []


@pytest.mark.full
def test_a_model_that_inflects_splits_and_invents_placeholders_is_counted_and_gets_nothing_wrong(tmp_path):
    fates = [*FATES.values()]
    values = [f"user{number}@example.com" for number in range(2 * len(fates))]

    def write(prompt: str) -> str:
        found = re.fullmatch(r"Say it: (\d+) of <(\w+)_(\w+)>", prompt)
        assert found is not None
        return fates[int(found[1]) % len(fates)][0](found[2], found[3]) + ", not <IBAN_0123>"

    with CopyingModel(write) as model:
        job = job_of(tmp_path, model, detectors=[{"type": "custom", "name": "MAIL", "pattern": r"\S+@\S+"}])
        ended = job.run([{"id": number, "text": f"{number} of {value}"} for number, value in enumerate(values)])
    expected = [2 * sum(each) for each in zip(*(counts for _, counts in fates), strict=True)]
    expected[3] += len(values)
    counts = ended.report["privacy"]
    assert [counts[name] for name in ("returned", "altered", "lost", "invented")] == expected
    for row in ended.answers:
        fate, (returned, *_) = fates[row["id"] % len(fates)]
        value, others = values[row["id"]], [each for each in values if each != values[row["id"]]]
        if returned:
            assert row["answer"] == fate("K", "T").replace("<K_T>", value) + ", not <IBAN_0123>"
        assert (value in row["answer"]) == bool(returned)
        assert [each for each in others if each in row["answer"]] == []


def test_a_row_that_no_one_may_send_is_not_sent(tmp_path):
    with CopyingModel() as model:
        job = job_of(tmp_path, model, actions={"CREDIT_CARD": "fail", "PHONE": "drop", "EMAIL": "hash"})
        ended = job.run(ROWS[:5])
        assert len(model.received) == 3
    assert ended.kinds == Counter(personal_data=2)
    assert ended.dead_letter[0]["llmbeam_error"]["attempts"] == 0
    answers = {row["id"]: row["answer"] for row in ended.answers}
    assert re.fullmatch(r"Say it: Write to <EMAIL_[0-9a-f]{16}>, or call \.", answers[1])
    assert leaks(tmp_path, job.source) == []


@pytest.mark.full
def test_a_database_that_quotes_a_value_brings_it_into_no_message(private_job, database, monkeypatch, caplog):
    monkeypatch.setenv("LLMBEAM_POSTGRES_DSN", database)
    private_job.spec |= {"sink": {"type": "postgres", "table": "answers"}, "state_uri": str(private_job.out)}
    private_job.write(ROWS[2:3])  # the keys of the table become numbers
    run(JobSpec.parse(private_job.spec))
    private_job.write(ROWS[4:5])
    with pytest.raises(LLMBeamError, match=r'invalid input syntax for type bigint: "<EMAIL>"') as failed:
        run(JobSpec.parse(private_job.spec))
    assert failed.value.__cause__ is None
    assert [value for value in PLANTED if value in str(failed.value) + caplog.text] == []


def test_columns_that_no_row_has_are_refused(private_job):
    private_job.write(ROWS[:3])
    with pytest.raises(
        JobSpecError, match=r"`safety.privacy.columns`: no row has column 'txt'; did you mean 'text'\?"
    ):
        run(JobSpec.parse(private_job.spec | {"safety": {"privacy": {"columns": ["txt"]}}}))


def test_a_job_without_its_key_does_not_start(private_job, monkeypatch):
    monkeypatch.delenv("LLMBEAM_PRIVACY_KEY")
    private_job.write(ROWS[:3])
    with pytest.raises(
        JobSpecError, match=r"`safety.privacy.key_env`: the environment variable 'LLMBEAM_PRIVACY_KEY'"
    ):
        run(JobSpec.parse(private_job.spec))


def test_rows_and_variables_in_the_spec_are_masked_in_the_report(private_job):
    source = {"type": "rows", "rows": ROWS[:2], "key": ["id"]}
    prompt = {"template": "{{ variables.who }}: {{ row.text }}", "variables": {"who": "bob@mail.internal"}}
    private_job.run(source=source, prompt=prompt)
    assert leaks(private_job.directory) == []


def test_vectors_are_of_masked_texts(private_job):
    ended = private_job.run(ROWS[:2], task="embed")
    assert len(ended.answers) == 2
    assert ended.report["privacy"]["masked"] == {"CREDIT_CARD": 1, "EMAIL": 2, "PHONE": 1}
    assert ended.report["privacy"]["issued"] == 0
    assert leaks(private_job.directory, private_job.source) == []


@pytest.mark.full
def test_estimate_preview_evaluation_comparison_and_review_have_the_prompts_of_the_job(tmp_path):
    golden = tmp_path / "golden.jsonl"
    golden.write_text(
        "".join(json.dumps({**row, "expected_copy": f"Say it: {row['text']}"}) + "\n" for row in ROWS[:3])
    )
    with CopyingModel() as model:
        job = job_of(tmp_path, model, columns=["text"])
        job.spec["safety"] |= {"audit": {"uri": str(tmp_path / "audit")}}
        job.write(ROWS[:3])
        spec = JobSpec.parse(job.spec)
        plain = make_preview(spec, PreviewSample(rows=1, sends=True)).plain()
        assert make_estimate(spec).sample_usage.requests == 2
        assert [value for value in PLANTED if value in json.dumps(plain)] == []
        report = evaluate(
            spec, Evaluation.parse({"golden": {"uri": str(golden), "key": "id"}, "metrics": {"copy": "exact"}})
        )
        assert report.scores["copy"].score == 1
        assert len(model.received) == 3, "all of them are the prompts that the preview and the estimate have sent"
        compare(
            spec, Comparison.parse({"other": {"prompt": {"template": "Tell: {{ row.text }}"}}, "sample_size": 3})
        )
        assert job.run().origins == Counter(resumed=3)
        records = [line for path in (tmp_path / "audit").rglob("*.jsonl") for line in read_lines(path)]
        masked = Counter(each["kind"] for record in records for each in record.get("masked", ()))
        assert masked == Counter(CREDIT_CARD=1, EMAIL=2, PHONE=1), "those of the preview and the estimate"
        reviews = sample_answers(spec, AnswerSample(rows=3))["reviews"]
        assert len(reviews) == 3
        assert "vault" not in json.dumps(reviews), "the person who reviews a row cannot read it"
        assert leaked({"XCom": json.dumps(reviews)}, PLANTED) == []
        received = b"".join(each.body for each in model.received).decode()
    assert [value for value in PLANTED if value in received] == []
    assert leaks(tmp_path, job.source, golden) == []


_EMAIL = re.compile(r"<EMAIL_\w+>")


def refused_once(prompt: str) -> str:
    """Changes the placeholders of a prompt, and copies them when it is asked again."""
    if "was refused" in prompt:
        return f"Dear {' and '.join(sorted(set(_EMAIL.findall(prompt))))}"
    return prompt.replace("<EMAIL_", "<email_")


def test_an_altered_placeholder_is_repaired_by_one_more_request_that_is_paid_once(tmp_path):
    with CopyingModel(lambda prompt: None if "was refused" in prompt else refused_once(prompt)) as model:
        job = job_of(tmp_path, model, on_altered="repair")
        job.spec["safety"] |= {"audit": {"uri": str(tmp_path / "audit")}}
        job.spec["limits"] |= {"max_attempts": 1}
        ended = job.run(ROWS[:4])
        assert ended.kinds == Counter(server_error=3)
        assert {row["llmbeam_error"]["attempts"] for row in ended.dead_letter} == {2}
        model.write, first = refused_once, len(model.received)
        ended = job.run()
        asked = [json.loads(each.body)["messages"][-1]["content"] for each in model.received[first:]]
        assert len(asked) == 2, "the repairs alone, and one for two rows with an equal prompt"
        assert all("as it changed these placeholders: <EMAIL_" in each for each in asked)
        again = job.run()
        assert len(model.received) == first + 2
    answers = {row["id"]: row["answer"] for row in ended.answers}
    assert answers == {3: "Say it: nothing"} | dict.fromkeys((1, 2, 4), "Dear ann@example.com")
    assert (ended.origins, again.origins) == (Counter(resumed=2, repaired=2), Counter(resumed=4))
    counts = again.report["privacy"]
    assert (counts["altered"], counts["returned"], counts["repaired"]) == (0, 3, 3)
    assert ended.report["requests"]["sent"] == 2
    records = [line for path in (tmp_path / "audit").rglob("*.jsonl") for line in read_lines(path)]
    assert Counter(record["outcome"] for record in records) == Counter(answered=5, server_error=2)
    assert leaks(tmp_path, job.source) == []


@pytest.mark.full
def test_a_repair_that_alters_a_placeholder_again_fails_its_row_and_both_answers_are_paid_once(tmp_path):
    with CopyingModel(
        lambda prompt: refused_once(prompt) if "call" in prompt else prompt.replace(">", "")
    ) as model:
        job = job_of(tmp_path, model, on_altered="repair")
        ended = job.run(ROWS[:3])
        assert ended.kinds == Counter(invalid_output=1)
        assert ended.dead_letter[0]["llmbeam_error"]["message"].endswith("so that it is not paid again")
        assert ended.origins == Counter(fresh=1, repaired=1)
        sums = ended.report["requests"]["sent"], ended.report["tokens"]["input"]
        assert (*sums, len(model.received)) == (5, 25, 5)
        assert job.run().kinds == Counter(invalid_output=1)
        assert len(model.received) == 5
        forget(JobSpec.parse(job.spec), RowsToForget(keys=("1",)))
        assert job.run().origins["repaired"] == 1
        assert len(model.received) == 7, "the answer and its repair are both forgotten"


@pytest.mark.full
def test_request_files_of_batch_inference_are_masked(job, sandbox, monkeypatch, tmp_path):
    monkeypatch.setattr(decide, "MIN_POLL_SECONDS", 0.05)
    monkeypatch.setattr(decide, "MAX_POLL_SECONDS", 0.05)
    monkeypatch.setattr(BatchInference, "clean_up", lambda _: None)  # so that the files are still there
    count = PILOT_ROWS + 3
    rows = [{"id": number, "text": f"Mail {number} to ann@example.com"} for number in range(count)]
    audit = {"uri": str(tmp_path / "audit")}
    ended = job.run(rows, inference={"mode": "batch"}, safety={"privacy": {}, "audit": audit})
    assert ended.origins == Counter(resumed=PILOT_ROWS, batch=3)
    assert ended.report["privacy"]["masked"] == {"EMAIL": count}
    assert ended.report["privacy"]["altered"] == count, "this model has no brackets in its answers"
    files = [path.name for path in job.directory.rglob("*.jsonl")]
    assert any(name.startswith("requests-") for name in files)
    assert leaks(job.directory, job.source) == []
    records = [line for path in (tmp_path / "audit").rglob("*.jsonl") for line in read_lines(path)]
    assert Counter(record["origin"] for record in records) == Counter(online=PILOT_ROWS, batch=3)
    assert [record["masked"] for record in records] == [[{"kind": "EMAIL", "count": 1}]] * count
    with pytest.raises(PermanentFailureError, match="the model altered a placeholder"):
        job.run(inference={"mode": "batch"}, safety={"privacy": {"on_altered": "repair"}})
    online = [request for request in sandbox.requests if request.method == "gemini.generateContent"]
    assert len(online) == PILOT_ROWS + count, "answers of batch inference are repaired online as well"
