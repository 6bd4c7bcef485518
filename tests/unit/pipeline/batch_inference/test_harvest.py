from __future__ import annotations

import json
from pathlib import Path

import pytest
from apache_beam import Pipeline
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from airflow_provider_llmbeam.engine.journal.entry import read_segment
from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.answer_form import AnswerForm
from airflow_provider_llmbeam.pipeline.batch_inference import harvest as module
from airflow_provider_llmbeam.pipeline.batch_inference.harvest import harvest, result_files
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import BatchManifest, RequestFile, Sums
from airflow_provider_llmbeam.providers.batch import BatchJob
from airflow_provider_llmbeam.providers.errors import ApiUnavailableError
from airflow_provider_llmbeam.spec import Embedding, JobSpec

KEY, OTHER = "a" * 64, "b" * 64
PRICE = {"input_usd_per_million_tokens": 1.0, "output_usd_per_million_tokens": 10.0}
FILE = RequestFile(digest="d", rows=2, size=1, input_tokens=500)
#: Keys that were asked.
KEYS = [KEY, OTHER, *(f"{number:064x}" for number in range(2_000))]


def answer(text="Paris", reason="STOP"):
    return {
        "candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": reason}],
        "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 10},
    }


def line(key=KEY, response=None, **fields):
    return json.dumps({"key": key, "response": response or answer(), **fields}).encode() + b"\n"


@pytest.fixture
def harvested(tmp_path):
    """Reads result lines into the journal; returns the sums and the outcomes by fingerprint."""
    job = {
        "name": "job",
        "source": {"uri": "/in.jsonl", "key": ["id"]},
        "prompt": {"template": "{{ row.text }}"},
        "model": {"type": "gemini"},
        "limits": {"price": PRICE},
        "sink": {"uri": f"{tmp_path}/out/"},
    }

    def read(*contents, **changes):
        spec = JobSpec.parse(job | changes)
        uris = [f"{tmp_path}/results-{number}.jsonl" for number in range(len(contents))]
        for uri, content in zip(uris, contents, strict=True):
            with storage.create(uri) as file:
                file.write(content)
        (tmp_path / "out/.llmbeam/job/batch").mkdir(parents=True, exist_ok=True)
        Path(spec.paths.index_uri("d")).write_text("".join(f"{key} {key}\n" for key in KEYS))
        with Pipeline(runner=FnApiRunner()) as pipeline:
            harvest(pipeline, spec, FILE, uris, f"{tmp_path}/sums.json", "job", 0.0)
        found = {}
        for uri in storage.match(f"{spec.paths.journal_uri}*.jsonl"):
            for entry in read_segment(uri, storage.open):
                found.setdefault(entry.fingerprint, []).append(entry.outcome)
        return Sums.model_validate_json((tmp_path / "sums.json").read_bytes()), found

    return read


EMBED = {
    "task": "embed",
    "model": {"type": "gemini", "name": "gemini-embedding-001"},
    "embedding": {"dimensions": 2},
}


def vector_line(values, key=KEY, **fields):
    return line(key, {"embedding": {"values": values}, **fields})


@pytest.mark.parametrize(("reported", "tokens"), [({"tokenCount": 100}, 100), ({}, 250)])
def test_a_vector_is_recorded_with_half_the_price_of_its_tokens_or_of_the_mean_estimate(
    harvested, reported, tokens
):
    sums, found = harvested(vector_line([0.5, 1], **reported), **EMBED)
    ((outcome,),) = found.values()
    assert isinstance(outcome, Completion)
    assert (outcome.text, outcome.parsed, outcome.service_tier) == ("", [0.5, 1], "batch")
    assert (outcome.tokens.input, outcome.padded_tokens) == (tokens, tokens)
    estimated = 0 if reported else tokens
    assert sums == Sums(answered=1, input_tokens=tokens, estimated_tokens=estimated, cost_nano_usd=tokens * 500)


@pytest.mark.parametrize("values", [[0.5], [0.5, "1"], [0.5, 1e39], [], None, "text"])
def test_a_vector_that_cannot_be_used_leaves_its_text_for_an_online_request(harvested, values):
    sums, found = harvested(vector_line(values, tokenCount=100) + vector_line([1, 0], OTHER), **EMBED)
    assert (sums.answered, sums.failed, sums.unusable) == (1, 1, 1)
    form = AnswerForm.of(Embedding(), None)
    assert {key: form.accepts(outcome) for key, (outcome,) in found.items()} == {KEY: False, OTHER: True}


def test_an_answer_is_recorded_with_its_tier_and_half_the_price(harvested):
    sums, found = harvested(line())
    ((outcome,),) = found.values()
    assert isinstance(outcome, Completion)
    assert (outcome.text, outcome.service_tier, outcome.cost_nano_usd) == ("Paris", "batch", 100_000)
    assert sums == Sums(answered=1, input_tokens=100, output_tokens=10, cost_nano_usd=100_000)


def test_tokens_written_to_a_cache_and_of_thoughts_are_billed_and_reported(harvested):
    usage = {"input_tokens": 100, "cache_creation_input_tokens": 40}
    usage |= {"output_tokens": 10, "output_tokens_details": {"thinking_tokens": 4}}
    message = {"type": "message", "content": [{"type": "text", "text": "Paris"}], "stop_reason": "end_turn"}
    result = {"type": "succeeded", "message": message | {"usage": usage}}
    sums, _ = harvested(
        json.dumps({"custom_id": KEY, "result": result}).encode() + b"\n",
        model={"type": "anthropic", "name": "claude-haiku-5-5"},
        limits={"price": PRICE | {"cache_write_usd_per_million_tokens": 1.25}},
    )
    manifest = BatchManifest(
        prompts="p", model={}, created_at=1.0, deadline_at=None, files={}, online_seconds=None
    )
    tally = manifest.changed(harvested={"a": sums}).tally()
    counts = ("input", "cache_write", "output", "reasoning")
    assert [tally.sums[f"{name}_tokens"] for name in counts] == [140, 40, 10, 4]
    assert tally.sums["cost_nano_usd"] == (100 * 1 + 40 * 1.25 + 10 * 10) * 1_000 / 2


@pytest.mark.parametrize(("generation", "reasoning"), [({}, None), ({"keep_reasoning": True}, "Hm.\nOkay.")])
def test_what_is_known_of_an_answer_is_recorded_as_it_is_online(harvested, generation, reasoning):
    parts = [{"text": "Hm.", "thought": True}, {"text": "<think>Okay.</think>Paris"}]
    found = answer()
    found["candidates"][0] |= {
        "content": {"parts": parts},
        "avgLogprobs": -0.5,
        "groundingMetadata": {"groundingChunks": [{"web": {"uri": "https://a", "title": "A"}}]},
    }
    _, outcomes = harvested(line(response=found), generation=generation)
    ((outcome,),) = outcomes.values()
    assert (outcome.text, outcome.reasoning, outcome.mean_logprob) == ("Paris", reasoning, -0.5)
    assert outcome.citations == [{"uri": "https://a", "title": "A", "texts": []}]


def test_a_line_that_is_delivered_twice_counts_once(harvested):
    failed = json.dumps({"key": KEY, "error": {"code": 500, "message": "x"}}).encode() + b"\n"
    sums, found = harvested(failed + line(), line())
    assert (sums.answered, sums.failed, len(found[KEY])) == (1, 0, 1)


def test_a_failed_row_is_no_answer_and_a_refused_answer_is(harvested):
    failed = json.dumps({"key": KEY, "error": {"code": 500, "message": "x"}}).encode() + b"\n"
    sums, found = harvested(failed + line(OTHER, answer("", "SAFETY")))
    assert (sums.answered, sums.failed, sums.unusable) == (1, 1, 0)
    (failure,), (refusal,) = found[KEY], found[OTHER]
    assert (failure.kind, failure.message, refusal.kind) == ("server_error", "x", "blocked")
    assert [AnswerForm.of(None, None).accepts(each) for each in (failure, refusal)] == [False, True]


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (answer(""), "garbage: the answer is empty"),
        (answer("half", "MALFORMED_RESPONSE"), "garbage: answer withheld: MALFORMED_RESPONSE"),
    ],
)
def test_an_answer_of_no_use_was_returned_and_is_in_the_bill(harvested, found, error):
    sums, _ = harvested(line(response=found))
    assert (sums.answered, sums.failed, sums.unusable, sums.output_tokens) == (0, 1, 1, 10)
    assert sums.errors == {error: 1}


NO_RESULTS = [
    b"{",
    b"\xff\xfe",
    b"null",
    line()[:-20],
    line("\ud800"),
    line("../" + KEY),
    line(KEY.upper()),
    b'{"key": ' + b"[" * 100_000,
]


def test_lines_that_are_no_result_of_a_request_are_counted_and_others_are_read(harvested, caplog):
    lines = b"".join(content.rstrip(b"\n") + b"\n" for content in NO_RESULTS)
    sums, found = harvested(lines + line(OTHER))
    assert (sums.answered, sums.malformed, list(found)) == (1, len(NO_RESULTS), [OTHER])
    assert "is no result, and its prompt is sent online" in caplog.text


def test_an_answer_of_a_prompt_that_was_never_asked_is_neither_recorded_nor_charged(harvested):
    sums, found = harvested(line("c" * 64) * 3 + line() + line("c" * 64, answer("", "SAFETY")))
    assert list(found) == [KEY]
    errors = {"garbage: a line that is no result: it answers no request of the job": 4}
    counts = {"answered": 1, "malformed": 4, "input_tokens": 100, "output_tokens": 10, "cost_nano_usd": 100_000}
    assert sums == Sums(**counts, errors=errors)


def test_a_result_file_is_copied_and_read_up_to_a_limit(copied, harvested, monkeypatch, caplog):
    monkeypatch.setattr(module, "MAX_RESULT_BYTES", len(line()) + 1)
    assert copied(line() + line(OTHER) * 1000)[0][0].count(b"\n") > 0
    assert "has more than" in caplog.text
    sums, found = harvested(line() + line(OTHER) + line("0" * 64))
    assert (sums.answered, list(found)) == (2, [KEY, OTHER])


def test_empty_result_files_leave_all_prompts_for_online_requests(harvested):
    assert harvested(b"", b"\n\n") == (Sums(), {})


def test_many_answers_are_in_few_segments(harvested, tmp_path):
    keys = [f"{number:064x}" for number in range(2_000)]
    sums, found = harvested(b"".join(line(key) for key in keys))
    assert sums.answered == len(found) == 2_000
    assert len(storage.match(f"{tmp_path}/out/.llmbeam/job/**/*.jsonl")) < 20


RESULTS = b'{"key": "a"}\n{"key": "b"}\n'
PAGE = b"<html>\n<body>502 Bad Gateway</body>\n</html>\n"
CUT = RESULTS[:-5]
JOB = BatchJob(
    name="batches/1", display_name="d", state="", phase="succeeded", created_at=1.0, results=("files/1", "files/2")
)


class Provider:
    """A provider that sends one content after the other for its first file."""

    def __init__(self, *contents):
        self._contents = list(contents)

    def results(self, job):
        yield "files/1", self._first()
        yield "files/2", iter([RESULTS[:9], RESULTS[9:]])

    def _first(self):
        content = self._contents.pop(0)
        yield from (content[:1], content[1:])


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Copies the files of a provider, and returns their contents."""
    waits = []
    monkeypatch.setattr(module.time, "sleep", waits.append)

    def copy(*contents):
        copies = [Path(uri).read_bytes() for uri in result_files(Provider(*contents), JOB, FILE, f"{tmp_path}/r")]
        return copies, waits

    return copy


@pytest.mark.parametrize("content", [RESULTS, RESULTS[:-1], RESULTS.replace(b"\n", b"\r\n"), b"", b"\n"])
def test_a_whole_file_is_read_once(copied, content):
    assert copied(content) == ([content, RESULTS], [])


@pytest.mark.parametrize("damaged", [PAGE, CUT])
def test_a_page_of_a_proxy_or_a_part_of_a_file_is_read_again(copied, caplog, damaged):
    assert copied(damaged, damaged, RESULTS) == ([RESULTS, RESULTS], [1.0, 5.0])
    assert caplog.text.count("Reading it again") == 2


def test_of_a_file_that_stays_cut_its_lines_are_used(copied):
    assert copied(CUT, CUT, CUT)[0] == [CUT, RESULTS]


def test_a_page_that_stays_is_no_result_and_the_paid_answers_are_kept(copied):
    with pytest.raises(ApiUnavailableError, match=r"files/1 of .*batches/1 has no line with .* are paid for"):
        copied(PAGE, PAGE, PAGE)


def test_the_errors_of_rows_are_counted_by_their_message(harvested):
    errors = [line(f"{number:064x}", error={"code": 400, "message": f"No. {number % 2}"}) for number in range(5)]
    sums, _ = harvested(b"".join(errors) if isinstance(errors[0], bytes) else "".join(errors))
    assert sums.errors == {"bad_request: No. 0": 3, "bad_request: No. 1": 2}
    assert sums.commonest_errors == "3 × bad_request: No. 0; 2 × bad_request: No. 1"
