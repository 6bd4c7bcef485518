from __future__ import annotations

import socket
import time

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.privacy import patterns
from airflow_provider_llmbeam.pipeline.privacy.detection import Detection, DetectionError
from airflow_provider_llmbeam.spec.safety import CustomDetector, PatternsDetector


def found(text: str, *detectors) -> dict[str, str]:
    return {text[each.start : each.end]: each.kind for each in Detection(detectors).find(text)}


def two_words(text: str) -> list[tuple[int, int]]:
    return [(0, 3), (4, 7)]


def out_of_range(text: str) -> list[tuple[int, int]]:
    return [(0, 99)]


def failing(text: str) -> list[tuple[int, int]]:
    raise RuntimeError(text)


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("write to ann@example.com", "ann@example.com", "EMAIL"),
        ("write to ann@mail.internal", "ann@mail.internal", "EMAIL"),
        ("call +49 30 9018207 now", "+49 30 9018207", "PHONE"),
        ("call 030 9018207 now", "030 9018207", "PHONE"),
        ("call (202) 555-0143 now", "(202) 555-0143", "PHONE"),
        ("card 4111 1111 1111 1111", "4111 1111 1111 1111", "CREDIT_CARD"),
        ("to DE89 3704 0044 0532 0130 00.", "DE89 3704 0044 0532 0130 00", "IBAN"),
        ("from 10.1.2.3", "10.1.2.3", "IP_ADDRESS"),
        ("from 2001:db8::7:1", "2001:db8::7:1", "IP_ADDRESS"),
        ("its MAC is aa-bb-cc-dd-ee-ff", "aa-bb-cc-dd-ee-ff", "MAC_ADDRESS"),
        ("pay 1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", "CRYPTO_WALLET"),
        ("SSN 536-22-8146", "536-22-8146", "US_SSN"),
        ("NHS 943 476 5919", "943 476 5919", "GB_NHS"),
        ("NI no. AB 12 34 56 C", "AB 12 34 56 C", "GB_NINO"),
        ("IdNr. 86095742719", "86095742719", "DE_TAX_ID"),
    ],
)
def test_a_value_is_found_by_its_form(text, value, kind):
    assert found(text, PatternsDetector()) == {value: kind}


@pytest.mark.parametrize(
    "text",
    ["row 12 of 1000000 rows", "4111 1111 1111 1112", "at 10:15, version 2.3.4", "2026-11-25", "a@b", "@", "<>"],
)
def test_what_has_only_the_look_of_one_is_left(text):
    assert (
        "CREDIT_CARD"
        not in found(text, PatternsDetector(entities=("CREDIT_CARD", "EMAIL", "IP_ADDRESS"))).values()
    )
    assert found(text, PatternsDetector(entities=("EMAIL", "IP_ADDRESS", "CREDIT_CARD", "IBAN"))) == {}


@pytest.mark.parametrize(
    "text",
    [
        "2021-11-15 00:04:02.566678+00:00",
        "2020-11-02T10:18:02.985126+00:00",
        "2021-10-20T19:09:49.815737",
        "2020-12-05 23:41:07.526618 UTC",
        "03:49:03.838579",
        "opened at 2023-03-04 09:01:27.822859+00:00 by the customer",
    ],
)
def test_a_time_with_microseconds_is_no_phone_number(text):
    assert found(text, PatternsDetector()) == {}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2026-01-01 12:00:00 030 9018207", "030 9018207"),
        ("12:00:00.123456 +49309018207", "+49309018207"),
        ("call (202) 555-0143 at 12:30", "(202) 555-0143"),
    ],
)
def test_a_phone_number_beside_a_time_is_found(text, number):
    assert found(text, PatternsDetector()) == {number: "PHONE"}


def test_only_the_wanted_kinds_are_found():
    assert found("ann@example.com 10.1.2.3", PatternsDetector(entities=("IP_ADDRESS",))) == {
        "10.1.2.3": "IP_ADDRESS"
    }


def test_every_kind_has_a_recogniser_that_can_be_loaded():
    for kind in patterns._RECOGNISERS:
        Detection([PatternsDetector(entities=(kind,))]).find("4111 a@b.example 12345678901234567890 1.2.3.4")


def test_nothing_is_fetched(monkeypatch):
    def refuse(*_):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert found("ann@example.co.uk", PatternsDetector()) == {"ann@example.co.uk": "EMAIL"}


def test_a_pattern_of_yours_is_searched():
    custom = CustomDetector(type="custom", name="CUSTOMER_ID", pattern=r"C-\d{4}")
    assert found("of C-1234 and C-99", custom) == {"C-1234": "CUSTOMER_ID"}


def test_a_function_of_yours_is_called():
    custom = CustomDetector(type="custom", name="WORD", function=f"{__name__}:two_words")
    assert found("ann bob", custom) == {"ann": "WORD", "bob": "WORD"}


def test_overlapping_values_are_one_of_the_surest_kind():
    long = CustomDetector(type="custom", name="LONG", pattern="to ann@example")
    assert found("to ann@example.com!", PatternsDetector(), long) == {"to ann@example.com": "LONG"}


def test_many_values_beside_many_placeholders_take_no_product_of_both():
    words = CustomDetector(type="custom", name="WORD", pattern="[a-z]{2,}")
    text = "<EMAIL_7f3a> ab " * 20_000
    began = time.process_time()
    assert len(Detection([words]).find(text)) == 20_000
    assert time.process_time() - began < 10, "one after the other: 0.3 s; each with each: ten minutes"


def test_placeholders_are_not_searched():
    digits = CustomDetector(type="custom", name="HEX", pattern="[0-9a-f]{4}")
    assert found("<EMAIL_7f3a> 1234", digits) == {"1234": "HEX"}
    whole = CustomDetector(type="custom", name="ALL", pattern=".+")
    assert found("a<EMAIL_7f3a>b", whole) == {"a": "ALL", "b": "ALL"}


@pytest.mark.parametrize(
    ("detector", "message"),
    [
        ({"pattern": r"(a|aa)+$"}, "took more than"),
        ({"function": f"{__name__}:failing"}, "raised RuntimeError$"),
        ({"function": f"{__name__}:out_of_range"}, r"returned \(0, 99\)"),
    ],
)
def test_a_detector_that_fails_says_so_without_the_text(monkeypatch, detector, message):
    monkeypatch.setattr("airflow_provider_llmbeam.pipeline.privacy.detection.TIMEOUT_SECONDS", 0.05)
    detection = Detection([CustomDetector(type="custom", name="X", **detector)])
    with pytest.raises(DetectionError, match=message) as failed:
        detection.find("a" * 40 + "!")
    assert "aaaa" not in str(failed.value)


def test_a_function_that_is_not_there_is_refused():
    with pytest.raises(
        JobSpecError, match=r"`safety.privacy.detectors.0.function`: 'no.such:one' cannot be imported"
    ):
        Detection([CustomDetector(type="custom", name="X", function="no.such:one")])


def test_without_presidio_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "presidio_analyzer", None)
    with pytest.raises(JobSpecError, match=r"pip install 'airflow-provider-llmbeam\[privacy\]'"):
        Detection([PatternsDetector()])
