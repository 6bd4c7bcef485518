"""Rows and prompts are masked, and only what a row issued is restored."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow, failed_row
from airflow_provider_llmbeam.pipeline.privacy.cipher import WrongKeyError
from airflow_provider_llmbeam.pipeline.privacy.masker import PersonalDataError
from airflow_provider_llmbeam.pipeline.privacy.vault import VAULT, Vault
from airflow_provider_llmbeam.pipeline.records import encode_record, failed_record, with_types
from tests.outcomes import completion

FORM = re.compile(r"<([A-Z_]+)_([0-9a-f]+)>")


def answer_of(masker, row, answer, parsed=None):
    """Masks a row, lets the model answer, and returns what the sink gets."""
    masked = masker.row(row)
    masked, prompt = masker.prompt(masked, Prompt(f"Say: {masked.get('text')}"))
    found = completion(answer(prompt.text), parsed=parsed and parsed(prompt.text))
    return masker.restore(AnsweredRow(masked, "f", found, "fresh"))


def test_a_copied_placeholder_is_restored(make_masker):
    row = {"id": 1, "text": "Write to ann@example.com."}
    found = answer_of(make_masker(), row, lambda prompt: prompt)
    assert found.completion.text == "Say: Write to ann@example.com."
    assert found.row == row


def test_the_masked_row_has_no_plain_value(make_masker):
    row = {
        "id": "ann@example.com",
        "text": ["call 123456", {"who bob@x.org": {"n": 4930123456, "ok": True}}],
        "p": 1.5,
    }
    masked = make_masker().row(row)
    text = json.dumps(masked)
    assert not re.search("ann@|bob@|123456", text)
    assert make_masker().plain(masked) == row
    assert masked[VAULT]["masked"] == {"EMAIL": 2, "NUMBER": 2}


@pytest.mark.parametrize("columns", [None, ["phone"]])
def test_a_number_of_a_column_with_nulls_is_masked_and_restored_as_it_was(make_masker, columns):
    """Such a column is read as floats."""
    row = {"id": 1, "phone": 4915112345678.0}
    masked = make_masker(columns=columns).row(row)
    assert FORM.fullmatch(masked["phone"])
    plain = make_masker(columns=columns).plain(masked)
    assert plain == row
    assert isinstance(plain["phone"], float)


def test_bytes_are_masked_and_restored_as_they_were(make_masker):
    row = {"id": 1, "text": b'{"mail": "ann@example.com"}', "more": [b"\xff 123456"]}
    masked = make_masker().row(row)
    assert FORM.fullmatch(masked["text"])
    assert FORM.fullmatch(masked["more"][0])
    assert make_masker().plain(masked) == row
    assert answer_of(make_masker(), row, lambda prompt: prompt).row == row


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 0.123456789, 12345.0, True])
def test_a_float_that_is_no_number_of_six_digits_is_left_as_it_is(make_masker, value):
    row = {"id": 1, "text": value}
    assert make_masker().row(row) is row


def test_the_report_shows_no_number_of_a_column_with_nulls(make_masker):
    source = {"rows": [{"id": 1, "phone": 123456.0, "share": 0.25}]}
    shown = make_masker().spec({"prompt": {"template": "hi"}, "source": source})
    assert shown["source"]["rows"] == [{"id": 1, "phone": "<NUMBER>", "share": 0.25}]


def test_a_row_without_personal_data_is_left_as_it_is(make_masker):
    row = {"id": 1, "text": "nothing", "none": None}
    assert make_masker().row(row) is row
    prompt = Prompt("nothing", "at all")
    assert make_masker().prompt(row, prompt) == (row, prompt)


def test_only_the_given_columns_are_masked(make_masker):
    masker = make_masker(columns=["text"])
    masked = masker.row({"id": 1, "text": "123456", "other": "654321"})
    assert masked["other"] == "654321"
    assert masker.prompt(masked, Prompt("654321 " + masked["text"]))[1].text == f"654321 {masked['text']}"


def test_the_whole_prompt_is_masked_without_columns(make_masker):
    row, prompt = make_masker().prompt({"id": 1}, Prompt("12 and 123456", "of 654321"))
    assert FORM.fullmatch(prompt.text.removeprefix("12 and "))
    assert FORM.fullmatch(prompt.system.removeprefix("of "))
    assert len(row[VAULT]["sent"]) == len(row[VAULT]["values"]) == 2


def test_equal_values_have_equal_placeholders_in_all_rows(make_masker):
    rows = [make_masker().row({"id": number, "text": "123456"}) for number in range(2)]
    assert rows[0]["text"] == rows[1]["text"]
    assert re.fullmatch(r"<NUMBER_[0-9a-f]{4}>", rows[0]["text"])


def test_values_in_keys_stay_distinct(make_masker):
    masked = make_masker().row({"id": "123456", "text": "123456"})
    assert re.fullmatch(r"<NUMBER_[0-9a-f]{32}>", masked["id"])
    assert masked["text"] == masked["id"]


def test_a_pseudonym_is_never_restored_but_in_a_key(make_masker):
    masker = make_masker(action="hash")
    row = {"id": "123456", "text": "123456 and 654321"}
    found = answer_of(masker, row, lambda prompt: prompt)
    assert found.row["id"] == "123456"
    assert re.fullmatch(r"<NUMBER_[0-9a-f]{16}> and <NUMBER_[0-9a-f]{16}>", found.row["text"])
    assert found.completion.text == f"Say: {found.row['text']}"
    assert not re.search("123456|654321", json.dumps(masker.row(row)))


def test_a_dropped_value_is_gone(make_masker):
    masker = make_masker(actions={"NUMBER": "drop"})
    assert masker.row({"id": 1, "text": "a 123456 b"}) == {
        "id": 1,
        "text": "a  b",
        VAULT: {"masked": {"NUMBER": 1}, "dropped": {"NUMBER": 1}},
    }


def test_a_row_with_what_no_row_may_have_fails_masked(make_masker):
    masker = make_masker(actions={"NUMBER": "fail"})
    failed = masker.row({"id": 1, "text": "a 123456 b"})
    assert isinstance(failed, FailedRow)
    assert (failed.failure.kind, failed.failure.attempts) == ("personal_data", 0)
    assert failed.failure.message.startswith("column 'text' has a value of kind NUMBER")
    assert "123456" not in repr(failed)
    assert masker.plain(failed.row)["text"] == "a 123456 b"
    with pytest.raises(PersonalDataError, match="the prompt has a value of kind NUMBER"):
        masker.prompt({"id": 1}, Prompt("123456"))


def test_a_text_that_a_detector_cannot_read_fails_masked_as_a_whole(make_masker):
    masker = make_masker(detectors=[{"type": "custom", "name": "X", "function": "builtins:len"}])
    failed = masker.row({"id": 1, "text": "ann", "number": 1234567})
    assert isinstance(failed, FailedRow)
    assert "raised TypeError" in failed.failure.message
    assert "ann" not in json.dumps(failed.row)
    assert masker.plain(failed.row)["text"] == "ann"
    assert "that is not shown" in masker.message("ann")


def test_what_looks_like_a_placeholder_in_the_source_is_not_restored(make_masker):
    masker = make_masker()
    own = masker.row({"id": 1, "text": "123456"})["text"]
    found = answer_of(masker, {"id": 1, "text": f"{own} is not 123456"}, lambda prompt: prompt)
    assert found.completion.text == f"Say: {own} is not 123456"
    masker = make_masker(template=f"Keep placeholders such as {own}: {{{{ row.text }}}}")
    assert masker.row({"id": 1, "text": "123456"})["text"] != own


def test_an_answer_with_a_schema_is_restored_inside_its_strings(make_masker):
    row = {"id": 1, "text": "123456"}
    found = answer_of(
        make_masker(), row, lambda prompt: "{}", lambda prompt: {"a": [prompt, 5, None], prompt[5:]: {"b": True}}
    )
    assert found.completion.parsed == {"a": ["Say: 123456", 5, None], "123456": {"b": True}}


def test_a_vector_citations_and_reasoning(make_masker):
    masker = make_masker()
    row, prompt = masker.prompt(masker.row({"id": 1, "text": "123456"}), Prompt("123456"))
    vector = AnsweredRow(row, "f", completion("", parsed=[0.5]), "fresh")
    assert masker.restore(vector).completion.parsed == [0.5]
    cited = AnsweredRow(row, "f", completion("x", citations=[{"texts": [prompt.text]}]), "fresh")
    assert masker.restore(cited).completion.citations == [{"texts": ["123456"]}]
    reasoned = AnsweredRow(row, "f", completion("x", reasoning=f"Who is {prompt.text}?"), "fresh")
    assert masker.restore(reasoned).completion.reasoning == "Who is 123456?"


def test_a_placeholder_of_a_column_that_was_not_sent_is_not_restored(make_masker):
    masker = make_masker()
    masked = masker.row({"id": 1, "text": "123456", "secret": "654321"})
    sent, _ = masker.prompt(masked, Prompt(masked["text"]))
    guessed = AnsweredRow(sent, "f", completion(masked["secret"]), "fresh")
    assert masker.restore(guessed).completion.text == masked["secret"]


def in_dead_letter(masker, row):
    """Returns a masked row as the dead letter has it."""
    failed = replace(failed_row({}, "template_error", "no"), row=masker.sealed(masker.row(row)))
    return json.loads(encode_record(failed_record(failed)))


def test_a_row_of_a_dead_letter_gets_its_placeholders_again(make_masker):
    masker = make_masker()
    row = {"id": "123456", "text": "654321", "day": date(2026, 1, 1), "number": 17.0}
    read = in_dead_letter(masker, row)
    assert isinstance(read[VAULT], str)
    again = masker.row(with_types(read))
    assert again == {**masker.row(row), "llmbeam_error": read["llmbeam_error"]}
    assert masker.plain(read)["id"] == "123456", "`forget` reads it without the types"


@pytest.mark.parametrize("change", [{"id": 2}, {"id": None}, {"id": "1"}])
def test_the_vault_of_another_row_restores_nothing(make_masker, change):
    masker = make_masker()
    stolen = in_dead_letter(masker, {"id": 1, "text": "123456"})
    failed = masker.row({**stolen, **change})
    assert isinstance(failed, FailedRow)
    assert "is that of a row with another key" in failed.failure.message
    assert "123456" not in repr(failed)
    assert failed.row[VAULT] == stolen[VAULT]


def test_the_vault_of_another_sink_restores_nothing(make_masker):
    read = in_dead_letter(make_masker(), {"id": 1, "text": "123456"})
    failed = make_masker(sink="elsewhere").row(read)
    assert isinstance(failed, FailedRow)
    assert make_masker(sink="elsewhere").row(failed) == failed, "and it stays as it is"
    assert make_masker().plain(failed.row)["text"] == "123456"


def test_a_vault_without_its_seal_is_no_vault(make_masker):
    masker = make_masker()
    masked = masker.row({"id": 1, "text": "123456"})
    copied = {"id": 2, "text": masked["text"], VAULT: dict(masked[VAULT])}
    assert "123456" not in repr(answer_of(masker, copied, lambda prompt: prompt))


def test_a_row_that_another_key_masked_fails_and_stays_as_it_is(make_masker, monkeypatch):
    masked = in_dead_letter(make_masker(), {"id": "123456", "text": "654321"})
    held = make_masker().row({"id": 1, "text": "654321"})
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "another secret of the tests")
    failed = make_masker().row(masked)
    assert isinstance(failed, FailedRow)
    assert failed.row == masked
    assert "masked with another key than the one in 'LLMBEAM_PRIVACY_KEY'" in failed.failure.message
    with pytest.raises(WrongKeyError):
        make_masker().restore(AnsweredRow(held, "f", completion(), "fresh"))


@pytest.mark.parametrize(
    "vault", ["x", None, 5, {"values": "x"}, {"values": {"<A_1234>": 5}}, {"values": {"": "x"}}, "vault1: 123456"]
)
def test_a_column_with_the_name_of_the_vault_that_no_job_wrote_is_masked_like_any_other(make_masker, vault):
    masker = make_masker()
    row = {"id": 1, "text": "123456", VAULT: vault}
    masked = masker.row(row)
    assert masked["text"] == masker.row({"id": 1, "text": "123456"})["text"]
    assert isinstance(masked[VAULT], Vault)
    plain = {"id": 1, "text": "x", VAULT: vault}
    found = masker.row(plain)
    assert found is plain or isinstance(found[VAULT], Vault)


def test_a_name_of_a_column_is_masked_and_restored(make_masker):
    row = {"id": 1, "text": "x", "ann@example.com": "y", "bob@example.com": "y"}
    masker = make_masker("{{ row.text }} {{ row }}", action="drop")
    masked = masker.row(row)
    assert not re.search("ann@|bob@", json.dumps(masked))
    assert masker.plain(masked) == row
    assert answer_of(masker, row, lambda prompt: prompt).row == row


def test_the_name_of_a_column_that_the_job_names_stays(make_masker):
    masker = make_masker("{{ row.ann_at_123456 }} {{ row['ann@example.com'] }}")
    row = {"id": 1, "ann@example.com": "y", "ann_at_123456": "x"}
    assert masker.row(row) == row


def test_the_error_of_an_earlier_job_without_privacy_is_masked(make_masker):
    row = {"id": 1, "text": "x", "llmbeam_error": {"message": "no 123456"}}
    assert "123456" not in json.dumps(make_masker(columns=["text"]).row(row))


def test_a_failed_row_of_the_source_is_masked(make_masker):
    failed = make_masker().row(failed_row({"llmbeam_raw": "no JSON: 123456"}, "unreadable_row", "at 654321"))
    assert "123456" not in json.dumps(failed.row)
    assert failed.failure.message == "at <NUMBER>"


def test_the_spec_is_shown_without_personal_data(make_masker):
    plain = {
        "prompt": {"template": "x 123456", "max_repairs": 1},
        "source": {"rows": [{"id": "654321"}]},
        "a": "123456",
    }
    assert make_masker().spec(plain) == {
        "prompt": {"template": "x <NUMBER>", "max_repairs": 1},
        "source": {"rows": [{"id": "<NUMBER>"}]},
        "a": "123456",
    }


VALUES = st.lists(st.from_regex(r"[1-9][0-9]{5}", fullmatch=True), min_size=1, max_size=6, unique=True)
FATES = st.lists(st.sampled_from(["copied", "cased", "bare", "split", "changed", "lost"]), min_size=6, max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(VALUES, FATES, st.lists(st.from_regex(r"[0-9a-f]{4}", fullmatch=True), max_size=3))
def test_whatever_a_model_does_no_value_is_restored_wrongly(make_masker, values, fates, invented):
    row = {"id": 1, "text": " ".join(values)}
    kept: list[str] = []

    def answer(prompt: str) -> str:
        parts = []
        placeholders = [match[0] for match in FORM.finditer(prompt)]
        assert len(placeholders) == len(values) == len(set(placeholders))
        for placeholder, fate in zip(placeholders, fates, strict=False):
            body = placeholder[1:-1]
            changed = f"<{body[:-1]}{'1' if body[-1] != '1' else '2'}>"
            part = {
                "copied": placeholder,
                "cased": f"<{body.title()}>",
                "bare": body,
                "split": f"<{body[:-2]} {body[-2:]}>",
                "changed": changed,
                "lost": "-",
            }[fate]
            parts.append(part)
        kept.extend(parts)
        others = [f"<NUMBER_{tag}>" for tag in invented if f"<NUMBER_{tag}>" not in placeholders]
        kept.extend(others)
        return " | ".join((*parts, *others))

    found = answer_of(make_masker(), row, answer).completion.text.split(" | ")
    expected = [
        values[place] if place < len(values) and fates[place] == "copied" else part
        for place, part in enumerate(kept)
    ]
    assert found == expected


PIECES = st.one_of(
    st.tuples(st.just("copy"), st.integers(0, 5)),
    st.tuples(st.just("foreign"), st.integers(0, 2)),
    st.tuples(
        st.sampled_from(["cut", "prefixed", "upper", "nested", "wide", "escaped", "broken", "joined"]),
        st.integers(0, 5),
    ),
    st.tuples(st.just("text"), st.text('<>_NUMBERabcdef \n"\\&\u200b', max_size=12)),
)


def written(piece: tuple[str, Any], own: list[str], foreign: list[str]) -> str:
    """Returns a piece of an answer of a model that does not do what it is asked to."""
    name, what = piece
    if name == "text":
        return str(what)
    if name == "foreign":
        return foreign[what % len(foreign)]
    one, other = own[what % len(own)], own[(what + 1) % len(own)]
    return {
        "copy": one,
        "cut": one[:-2] + ">",
        "prefixed": f"<UN{one[1:]}",
        "upper": one.upper(),
        "nested": f"{one[:4]}{one}{one[4:]}",
        "wide": one.replace("_", "＿"),
        "escaped": one.replace("<", "\\u003c"),
        "broken": f"{one[:5]}\n{one[5:]}",
        "joined": f"{one[:-1]}{other[1:]}",
    }[name]


@pytest.mark.fuzz
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES, st.lists(PIECES, max_size=8), st.sampled_from(["", " ", "\n"]), st.booleans())
def test_a_hostile_answer_gets_the_values_of_exact_placeholders_of_its_row_alone(
    make_masker, values, pieces, separator, is_json
):
    masker = make_masker(detectors=[{"type": "custom", "name": "NUMBER", "pattern": r"\b\d{6}\b"}])
    of_others = [masker.row({"id": 1, "text": f"00000{digit}"})["text"] for digit in range(3)]
    own: list[str] = []
    answered: list[str] = []

    def answer(prompt: str) -> str:
        own.extend(match[0] for match in FORM.finditer(prompt))
        foreign = [each for each in of_others if each not in own]
        answered.append(separator.join(written(piece, own, foreign) for piece in pieces))
        return answered[0]

    def parsed(_: str) -> dict[str, Any]:
        return {"a": [answered[0]], "n": 1}

    row = {"id": 1, "text": " ".join(values)}
    completion = answer_of(masker, row, answer, parsed if is_json else None).completion
    found = completion.parsed["a"][0] if is_json else completion.text
    exact = re.compile("|".join(map(re.escape, own)))
    assert found == exact.sub(lambda match: values[own.index(match[0])], answered[0])


def test_a_number_of_a_column_is_a_text_in_an_answer_and_a_number_in_its_column(make_masker):
    row = {"id": 1, "text": 4930123456}
    found = answer_of(make_masker(), row, lambda prompt: "{}", lambda prompt: {"who": prompt[5:]})
    assert found.completion.parsed == {"who": "4930123456"}
    assert found.row == row
