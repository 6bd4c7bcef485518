from __future__ import annotations

import dataclasses
import gzip
import io
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.journal.entry import MAX_ABOUT, MAX_DEPTH, Entry, encode_entry, read_segment
from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.spec.fields.failure_kind import FAILURE_KINDS
from airflow_provider_llmbeam.spec.model.tier import SERVICE_TIERS
from tests.hostile import examples

any_text = st.text(st.characters(exclude_categories=()), max_size=30)
unicode_text = st.text(max_size=30)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=6,
)
counts = st.integers(0, 10**12)
tokens = st.builds(Tokens, counts, counts, counts, counts, counts, counts, counts)
completions = st.builds(
    Completion,
    text=any_text,
    parsed=any_json,
    model=unicode_text,
    finish_reason=unicode_text,
    tokens=tokens,
    attempts=counts,
    rejections=counts,
    repairs=counts,
    latency_seconds=st.floats(0, 1e6),
    first_token_seconds=st.none() | st.floats(0, 1e6),
    padded_tokens=counts,
    sent_at=st.floats(0, 1e10),
    answered_at=st.floats(0, 1e10),
    service_tier=st.sampled_from(SERVICE_TIERS),
    reasoning=st.none() | any_text,
)
FIELDS = {
    "fingerprint": "b",
    "job": "nightly",
    "text": "hi",
    "parsed": None,
    "model": "m",
    "finish_reason": "stop",
    "input_tokens": 1,
    "output_tokens": 1,
    "attempts": 1,
    "latency_seconds": 0.1,
    "sent_at": 1.0,
    "answered_at": 2.0,
}


FIELDS_OF_ANSWER: dict[str, Any] = {
    "tokens": Tokens(1, 1),
    **{
        name: FIELDS[name]
        for name in FIELDS
        if name not in ("fingerprint", "job", "input_tokens", "output_tokens")
    },
}


def line_of(**changes: Any) -> bytes:
    return json.dumps({**FIELDS, **changes}).encode() + b"\n"


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


refusals = st.builds(
    Failure,
    kind=st.sampled_from(FAILURE_KINDS),
    message=unicode_text,
    http_status=st.none() | st.integers(100, 599),
    attempts=counts,
    rejections=counts,
    tokens=tokens,
    max_repairs=counts,
    answered_at=st.floats(0, 1e10),
    service_tier=st.sampled_from(SERVICE_TIERS),
    category=st.none() | unicode_text,
)
REFUSAL = Failure(kind="truncated", message="cut", http_status=200, attempts=1, tokens=Tokens(7), answered_at=2.0)
BEFORE, AFTER = line_of(fingerprint="a"), line_of(fingerprint="c")
NUMBER = b'"latency_seconds": 0.1'


def read(content: bytes) -> list[Entry]:
    return list(read_segment("journal/1.jsonl", lambda _: io.BytesIO(content)))


@pytest.mark.parametrize("fields", [FIELDS_OF_ANSWER, {"kind": "blocked", "message": "no", "failed_at": 3.0}])
def test_times_that_only_the_report_needs_are_not_in_a_line_that_earlier_versions_read(fields: Any) -> None:
    kind = Failure if "kind" in fields else Completion
    plain, timed = kind(**fields), kind(**fields, rejections=1, rejected_at=(1.5,))
    assert b"rejected_at" not in encode_entry("b", "nightly", timed)
    assert b"failed_at" not in encode_entry("b", "nightly", timed)
    (entry,) = read(encode_entry("b", "nightly", timed))
    assert entry.outcome == dataclasses.replace(plain, rejections=1)


@given(unicode_text, refusals)
def test_a_refused_answer_round_trips_through_the_journal(fingerprint: str, written: Failure) -> None:
    assert read(encode_entry(fingerprint, "nightly", written)) == [Entry(fingerprint, "nightly", written)]


@pytest.mark.parametrize("outcome", [Completion(**FIELDS_OF_ANSWER), REFUSAL])
def test_a_verdict_names_the_prompts_that_it_is_about_and_an_answer_names_none(outcome: Any) -> None:
    line = encode_entry("f", "nightly", outcome, ("1", "2"))
    assert json.loads(line)["about"] == ["1", "2"]
    assert read(line) == [Entry("f", "nightly", outcome)]
    assert b"about" not in encode_entry("f", "nightly", outcome)
    frequent = encode_entry("f", "nightly", outcome, [str(number) for number in range(10_000)])
    assert len(json.loads(frequent)["about"]) == MAX_ABOUT


@pytest.mark.parametrize("about", ["f", [1], ["\ud800"], None])
def test_a_verdict_with_wrong_prompts_is_passed_over(about: Any) -> None:
    assert read(BEFORE + line_of(about=about) + AFTER) == read(BEFORE + AFTER)


def test_a_refused_answer_has_a_field_that_readers_before_it_do_not_know() -> None:
    """They pass over a line with any field but these, and send its prompt again."""
    known = {"fingerprint", "job", *(field.name for field in dataclasses.fields(Completion))}
    line = json.loads(encode_entry("f", "nightly", REFUSAL))
    assert line["refused"] == "truncated"
    assert line.keys() - known >= {"refused"}


@pytest.mark.parametrize(
    "change",
    [{"refused": "tired"}, {"refused": None}, {"refused": []}, {"text": "hi"}, {"attempts": -1}, {"message": 1}],
)
def test_a_refusal_with_a_wrong_field_is_passed_over(change: dict[str, Any]) -> None:
    fields = json.loads(encode_entry("f", "nightly", REFUSAL))
    assert read(BEFORE + json.dumps(fields | change).encode() + b"\n" + AFTER) == read(BEFORE + AFTER)


@pytest.mark.parametrize("name", sorted(json.loads(encode_entry("f", "j", REFUSAL)).keys() - {"refused"}))
def test_a_refusal_without_one_of_its_fields_is_passed_over(name: str) -> None:
    fields = json.loads(encode_entry("f", "nightly", REFUSAL))
    del fields[name]
    assert read(json.dumps(fields).encode() + b"\n" + AFTER) == read(AFTER)


@pytest.mark.fuzz
@examples(0.4)
@given(unicode_text, completions)
def test_an_answer_round_trips_through_the_journal(fingerprint: str, written: Completion) -> None:
    line = encode_entry(fingerprint, "nightly", written)
    assert line.count(b"\n") == 1
    assert read(line) == [Entry(fingerprint, "nightly", written)]


@pytest.mark.fuzz
@examples(0.4)
@given(completions, st.data())
def test_an_incomplete_last_line_is_passed_over_and_the_rest_is_read(torn: Completion, data: Any) -> None:
    line = encode_entry("second", "j", torn)
    cut = data.draw(st.integers(1, len(line) - 2))
    assert [entry.fingerprint for entry in read(BEFORE + line[:cut])] == ["a"]


@pytest.mark.parametrize("outcome", [REFUSAL, Completion(**{**FIELDS_OF_ANSWER, "parsed": None})])
def test_the_standard_tier_is_not_written_so_that_earlier_versions_read_the_line(outcome: Any) -> None:
    assert "service_tier" not in json.loads(encode_entry("f", "nightly", outcome))
    batch = dataclasses.replace(outcome, service_tier="batch")
    assert json.loads(encode_entry("f", "nightly", batch))["service_tier"] == "batch"


WRONG: dict[str, tuple[bytes, str]] = {
    "blank": (b"\n", "Expecting value"),
    "zeros": (b"\x00\x00\n", "Expecting value"),
    "binary": (bytes(range(128, 256)) + b"\n", "can't decode"),
    "UTF-16": (line_of().strip().decode().encode("utf-16") + b"\n", "can't decode"),
    "number": (b"3\n", "a JSON int, not an object"),
    "null": (b"null\n", "a JSON NoneType, not an object"),
    "list": (b"[]\n", "a JSON list, not an object"),
    "no field": (b"{}\n", "it has no field `answered_at`"),
    "no text": (line_of().replace(b'"text": "hi", ', b""), "it has no field `text`"),
    "new field": (line_of(thoughts=[]), "'thoughts' that this version does not know"),
    "fingerprint": (line_of(fingerprint=5), "its field `fingerprint` is 5"),
    "half a pair": (line_of(fingerprint="\ud800"), "its field `fingerprint` is '\\ud800'"),
    "job": (line_of(job=["a"]), "its field `job` is a JSON list"),
    "text": (line_of(text=None), "its field `text` is None"),
    "citations": (line_of(citations=["https://example.com"]), "its field `citations` is a JSON list"),
    "reasoning": (line_of(reasoning=["hm"]), "its field `reasoning` is a JSON list"),
    "logprob": (line_of(mean_logprob=0.5), "its field `mean_logprob` is 0.5"),
    "tier": (line_of(service_tier="cheap"), "its field `service_tier` is 'cheap'"),
    "list tier": (line_of(service_tier=["batch"]), "its field `service_tier` is a JSON list"),
    "list text": (line_of(text=["hi"]), "its field `text` is a JSON list"),
    "model": (line_of(model={}), "its field `model` is a JSON dict"),
    "finish_reason": (line_of(finish_reason=1), "its field `finish_reason` is 1"),
    "text tokens": (line_of(input_tokens="7"), "its field `input_tokens` is '7'"),
    "half tokens": (line_of(output_tokens=0.5), "its field `output_tokens` is 0.5"),
    "true tokens": (line_of(attempts=True), "its field `attempts` is True"),
    "no tokens": (line_of(padded_tokens=None), "its field `padded_tokens` is None"),
    "negative": (line_of(rejections=-1), "its field `rejections` is -1"),
    "huge": (line_of(repairs=10**13), "its field `repairs` is 10000000000000"),
    "too many digits": (line_of().replace(b"0.1", b"9" * 5000), "Exceeds the limit"),
    "when": (line_of(answered_at="x"), "its field `answered_at` is 'x'"),
    "NaN": (line_of(answered_at=float("nan")), "NaN is not a JSON number"),
    "Infinity": (line_of(answered_at=float("inf")), "Infinity is not a JSON number"),
    "-Infinity": (line_of(sent_at=float("-inf")), "-Infinity is not a JSON number"),
    "1e400": (line_of().replace(NUMBER, b'"latency_seconds": 1e400'), "its field `latency_seconds` is inf"),
    "before 1970": (line_of(sent_at=-1.0), "its field `sent_at` is -1.0"),
    "first token": (line_of(first_token_seconds="soon"), "its field `first_token_seconds` is 'soon'"),
    "NaN inside": (line_of(parsed={"a": [float("nan")]}), "NaN is not a JSON number"),
    "1e400 inside": (line_of().replace(b"null", b'{"a": [1e400, "x"]}'), "its field `parsed` is a JSON dict"),
    "vector": (line_of().replace(b"null", b"[0.1, 1e400]"), "its field `parsed` is a JSON list"),
    "deep": (line_of().replace(b"null", nested(900).encode()), "its field `parsed` is a JSON list"),
    "deepest": (line_of().replace(b"null", nested(200_000).encode()), "nested too deeply"),
}


@pytest.mark.parametrize(("wrong", "reason"), WRONG.values(), ids=WRONG)
def test_a_wrong_line_is_passed_over_with_one_warning_that_names_the_file(
    wrong: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert [entry.fingerprint for entry in read(BEFORE + wrong + AFTER)] == ["a", "c"]
    (message,) = caplog.messages
    assert "'journal/1.jsonl'" in message
    assert " of 3 lines" in message or " of 4 lines" in message
    assert "line 2: " in message
    assert reason in message


def test_many_wrong_lines_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert [entry.fingerprint for entry in read(line_of(text=3) * 50 + b"x\n" * 50 + AFTER)] == ["c"]
    (message,) = caplog.messages
    assert "100 of 101 lines" in message
    assert "line 1: its field `text` is 3" in message


@pytest.mark.parametrize(
    "content",
    [gzip.compress(line_of() * 99, mtime=0)[:-9], b"\x89PNG\r\n\x1a\n" * 99, b""],
    ids=["torn gzip", "image", "empty"],
)
def test_another_kind_of_file_has_no_entries(content: bytes) -> None:
    assert read(content) == []


def test_of_a_repeated_field_the_last_value_counts() -> None:
    line = line_of().replace(b'"text": "hi"', b'"text": 5, "text": "last"')
    assert [entry.outcome.text for entry in read(line)] == ["last"]


def test_a_deep_answer_is_read_up_to_the_limit() -> None:
    def found(depth: int) -> list[Entry]:
        return read(line_of().replace(b"null", nested(depth).encode()))

    assert found(MAX_DEPTH + 1) == []
    assert len(found(MAX_DEPTH)) == 1


class Unbroken(io.RawIOBase):
    """A file without a line break, then an entry; counts the largest read."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.tail = b"\n" + AFTER
        self.largest = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.largest = max(self.largest, len(buffer))
        if self.left:
            count = min(self.left, len(buffer))
            self.left -= count
            buffer[:count] = b"x" * count
            return count
        count = min(len(self.tail), len(buffer))
        buffer[:count], self.tail = self.tail[:count], self.tail[count:]
        return count


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("airflow_provider_llmbeam.engine.journal.entry.MAX_LINE_BYTES", 2**20)
    return 2**20


def test_a_line_without_an_end_is_passed_over_in_pieces(
    short_lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    file = Unbroken(16 * short_lines)
    opened: Any = lambda _: file  # noqa: E731
    assert [entry.fingerprint for entry in read_segment("f", opened)] == ["c"]
    assert file.largest <= 2 * short_lines
    assert "1 of 2 lines" in caplog.text
    assert "longer than 1,048,576 bytes" in caplog.text


def test_a_line_of_exactly_the_limit_is_read(short_lines: int) -> None:
    text = "x" * (short_lines - len(line_of(text="")))
    assert len(line_of(text=text)) == short_lines
    assert len(read(line_of(text=text) + AFTER)) == 2
    assert len(read(line_of(text=text + "x") + AFTER)) == 1


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), IsADirectoryError(21, "Is a directory")]
)
def test_a_segment_that_cannot_be_opened_is_passed_over(error: OSError, caplog: pytest.LogCaptureFixture) -> None:
    def refused(uri: str) -> Any:
        raise error

    assert list(read_segment("shared/1.jsonl", refused)) == []
    (message,) = caplog.messages
    assert "'shared/1.jsonl' cannot be read" in message


def is_valid(entry: Entry) -> bool:
    """Whether an entry can be used by all later steps."""
    answer = entry.outcome
    whole = (
        answer.tokens.input,
        answer.tokens.output,
        answer.attempts,
        answer.rejections,
        answer.repairs,
        answer.padded_tokens,
    )
    times = (answer.latency_seconds, answer.first_token_seconds or 0.0, answer.sent_at, answer.answered_at)
    texts = (entry.fingerprint, entry.job, answer.model, answer.finish_reason)
    json.dumps(answer.parsed, allow_nan=False)
    return (
        all(isinstance(text, str) and text.encode() is not None for text in texts)
        and isinstance(answer.text, str)
        and all(type(count) is int and 0 <= count < 2**63 for count in whole)
        and all(isinstance(time, float | int) and 0 <= time < float("inf") for time in times)
    )


any_value = any_json | st.just(float("nan")) | st.just(float("inf")) | st.integers() | st.floats()


@pytest.mark.fuzz
@examples(0.4)
@given(st.dictionaries(st.sampled_from([*FIELDS, "first_token_seconds", "padded_tokens"]) | any_text, any_value))
def test_any_values_in_any_fields_are_an_entry_or_passed_over(changes: dict[str, Any]) -> None:
    entries = read(BEFORE + line_of(**changes) + AFTER)
    assert all(map(is_valid, entries))
    assert entries[0].fingerprint == "a"
    assert entries[-1].fingerprint == "c"


@pytest.mark.fuzz
@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 20))
def test_any_bytes_in_a_segment_are_passed_over(noise: bytes, at: int, dropped: int) -> None:
    line = line_of()
    torn = line[:at] + noise + line[at + dropped :]
    assert all(map(is_valid, read(noise)))
    assert all(map(is_valid, read(BEFORE + torn + b"\n" + AFTER)))
    assert read(BEFORE + torn + b"\n" + AFTER)[-1].fingerprint == "c"
