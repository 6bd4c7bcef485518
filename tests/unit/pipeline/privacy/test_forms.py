"""Personal data is found however its characters are written."""

from __future__ import annotations

import html
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.privacy.detection import Detection
from airflow_provider_llmbeam.spec.safety import CustomDetector, PatternsDetector

PATTERNS = Detection([PatternsDetector()])


def wide(text: str) -> str:
    return "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("ann%40example.com", "EMAIL"),
        ("ann%40example%2Ecom", "EMAIL"),
        ("ann&#64;example.com", "EMAIL"),
        ("ann&#x40;example&period;com", "EMAIL"),
        ("ann&commat;example.com", "EMAIL"),
        ("ann\uff20example.com", "EMAIL"),
        ("ann\ufe6bexample.com", "EMAIL"),
        (wide("ann@example.com"), "EMAIL"),
        ("an\u200bn@exam\u00adple.c\u2060om", "EMAIL"),
        ("4111\u00a01111\u00a01111\u00a01111", "CREDIT_CARD"),
        ("4111&nbsp;1111&nbsp;1111&nbsp;1111", "CREDIT_CARD"),
        (wide("4111-1111-1111-1111"), "CREDIT_CARD"),
        ("4111\u200b1111\u200b1111\u200b1111", "CREDIT_CARD"),
        ("\u0664\u0661\u0661\u0661 1111 1111 1111", "CREDIT_CARD"),
        ("DE89\u202f3704\u202f0044\u202f0532\u202f0130\u202f00", "IBAN"),
        ("%2B49%2030%209018207", "PHONE"),
        ("202\u2011555\u20110143", "PHONE"),
        ("415\u2013555\u20130132", "PHONE"),
        ("4111\u22121111\u22121111\u22121111", "CREDIT_CARD"),
        ("4111\u31641111\u31641111\u31641111", "CREDIT_CARD"),
        ("ann\U000e0041@example.com", "EMAIL"),
        ("10\u200b.1.2\uff0e3", "IP_ADDRESS"),
    ],
)
def test_a_value_is_found_and_masked_as_a_whole_however_it_is_written(value, kind):
    text = f"Bien s\u00fbr\u00a0: {value} \u2014 and 5 % of it"
    assert [(text[each.start : each.end], each.kind) for each in PATTERNS.find(text)] == [(value, kind)]


def test_a_detector_of_yours_searches_the_text_as_it_is_too():
    detection = Detection(
        [
            CustomDetector(type="custom", name="RAW", pattern="%40|\u00a0"),
            CustomDetector(type="custom", name="PLAIN", pattern="a@b"),
        ]
    )
    text = "\u00a0a&#64;b x%40y"
    assert {text[each.start : each.end]: each.kind for each in detection.find(text)} == {
        "\u00a0": "RAW",
        "a&#64;b": "PLAIN",
        "%40": "RAW",
    }


@pytest.mark.parametrize(
    "text", ["100% of &c; 5 %", "&#0; &#x110000; &nothing; %zz", "&fjlig;\u200b", "\u3000", "\uff5e"]
)
def test_what_only_looks_encoded_is_left(text):
    assert PATTERNS.find(text) == ()


@pytest.mark.fuzz
@given(
    st.text(max_size=6),
    st.lists(st.sampled_from(["as it is", "percent", "entity", "wide", "hidden"]), min_size=9, max_size=9),
    st.text(max_size=6),
)
def test_however_each_character_is_written_the_value_is_inside_what_is_found(before, ways, after):
    forms = {
        "as it is": lambda each: each,
        "percent": lambda each: quote(each) if each == "@" else f"%{ord(each):02x}",
        "entity": lambda each: f"&#{ord(each)};",
        "wide": wide,
        "hidden": lambda each: f"{each}\u200b",
    }
    value = "".join(forms[way](each) for way, each in zip(ways, "#123@456#", strict=True))
    text = f"{before} {value} {after}"
    detection = Detection([CustomDetector(type="custom", name="X", pattern="#123@456#")])
    start = len(before) + 1
    end = start + len(value.rstrip("\u200b"))
    assert any(each.start <= start and each.end >= end for each in detection.find(text)), html.escape(text)
