"""Texts for people hold no secrets."""

from __future__ import annotations

import base64
import html
import json
import re
import textwrap
import time
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_llmbeam.redaction import (
    MASK,
    has_secret_form,
    redact,
    redact_all,
    secrets_of,
    url_fault,
    visible,
)

SECRET = "p@ss:w/rd?#&%'ä \"x\\y"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----\n"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOiJodHRwczovL2EucnVuLmFwcCJ9.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg"
#: Texts without `*`, so that a mask never becomes part of a secret.
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="*"), max_size=60)


@pytest.mark.parametrize(
    "encoded",
    [
        SECRET,
        quote(SECRET),
        quote(SECRET, safe=""),
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        repr(SECRET),
        f"{SECRET!r} and again {SECRET}",
    ],
)
def test_a_known_secret_is_removed_in_every_encoding(encoded):
    text = redact(f"before {encoded} after", [SECRET])
    assert "p@ss" not in text
    assert "p%40ss" not in text
    assert text.startswith("before ")
    assert text.endswith(" after")


@pytest.mark.fuzz
@given(WORDS, WORDS, st.text(st.characters(codec="utf-8", exclude_characters="*"), min_size=8).filter(str.strip))
def test_no_text_around_a_known_secret_keeps_it(before, after, secret):
    if len(secret.strip()) >= 8:
        assert secret not in redact(f"{before}{secret}{after}", [secret])


@pytest.mark.fuzz
@given(st.binary(max_size=4), st.text(st.characters(codec="utf-8"), min_size=8), st.binary(max_size=4))
@example(b"user:", "a-key-of-nobody", b"")
def test_no_encoding_of_bytes_with_a_secret_shows_eight_letters_of_it(before, secret, after):
    """Basic authentication encodes the user before the key, and so each letter of it in another way."""
    content, found = before + secret.strip().encode() + after, [secret] if len(secret.strip()) >= 8 else []
    for encoded in (base64.b64encode(content), base64.urlsafe_b64encode(content), content.hex().encode()):
        left = redact(f"a {encoded.decode()} b", found)
        assert not found or (MASK in left and len(left) <= len("a *** b") + 2 * len(before + after) + 8)


#: Forms in which servers, proxies and libraries repeat what they were sent.
FORMS = {
    "HTML": html.escape,
    "HTML, numbers": lambda text: "".join(f"&#{ord(sign)};" for sign in text),
    "JSON of Go and Java": lambda text: "".join(
        f"\\u{ord(sign):04x}" if sign in "&<>='" else sign for sign in text
    ),
    "JSON of PHP": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "JSON within JSON": lambda text: json.dumps(json.dumps(text)),
    "URL in lower case": lambda text: "".join(
        sign if sign.isalnum() and sign.isascii() else "".join(f"%{byte:02x}" for byte in sign.encode())
        for sign in text
    ),
    "URL, every character": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "URL within a URL": lambda text: quote(quote(text, safe=""), safe=""),
    "bytes": lambda text: repr(text.encode()),
    "lines": lambda text: "\n  ".join(textwrap.wrap(text, 7, drop_whitespace=False)),
    "Base64 in lines": lambda text: "\r\n".join(textwrap.wrap(base64.b64encode(text.encode()).decode(), 10)),
    "Base64 in JSON of PHP": lambda text: base64.b64encode(text.encode()).decode().replace("/", "\\/"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", [SECRET, "Ab+/cd=ef&gh<ij>'12345==", "a-key-of-nobody-0123456789"])
def test_a_known_secret_is_removed_however_its_characters_are_escaped(form, secret):
    text = redact(f"before {FORMS[form](secret)} after", [secret])
    assert re.fullmatch(r"before b?['\"\\]*\*\*\*[\w='\"\\]{0,4} after", text)


@pytest.mark.fuzz
@given(
    WORDS,
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zs"], exclude_characters="\\%;"), min_size=8),
    st.sampled_from([*FORMS]),
)
@example("", "0000000&", "HTML, numbers")
@example("", "000000¡&", "JSON of PHP")
def test_no_escaped_form_of_a_secret_is_left(before, secret, form):
    if len(secret.strip()) >= 8:
        assert MASK in redact(f"{before} {FORMS[form](secret.strip())}", [secret])


@given(st.integers(20, 60))
def test_an_escaped_secret_that_the_end_of_a_message_cuts_off_is_removed(kept):
    text = FORMS["URL in lower case"]("key/of+nobody=0123456789&abcdef//")
    assert redact(f"invalid {text[:kept]}", ["key/of+nobody=0123456789&abcdef//"]).startswith(f"invalid {MASK}")


@pytest.mark.parametrize("text", ["%" + "25" * 10_000, "\\" * 20_000, "&" * 20_000, "\n" * 20_000, "\\u" * 10_000])
def test_a_text_of_escapes_does_not_hold_the_process(text):
    started_at = time.process_time()
    redact(text, ["a-key-of-nobody", "%25" * 20])
    assert time.process_time() - started_at < 1.0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\0b\x1b[1m\u202ec\x9f\ud83d\n\t", "a␀b␛[1m⟨202E⟩c⟨009F⟩⟨D83D⟩\n\t"),
        ("the key is s3cret\x1b[0mkey", "the key is ***"),
        ("done\r12:00:00 another line", "done␍12:00:00 another line"),
        ("done\u2028another line\u2029", "done⟨2028⟩another line⟨2029⟩"),
    ],
)
def test_hidden_characters_of_others_are_shown(text, shown):
    assert redact(text, ["s3cret\x1b[0mkey"]) == shown


@given(st.text(st.characters() | st.characters(categories=["Cs", "Cc", "Cf"])))
def test_no_text_for_people_moves_a_cursor_or_turns_the_text_around(text):
    assert not {"\x1b", "\r", "\b", "\x9b", "\u202e", "\u2066", "\u061c"} & {*redact(text)}
    assert visible(visible(text)) == visible(text)


@pytest.mark.fuzz
@given(WORDS, st.lists(WORDS, max_size=3))
def test_redacting_twice_changes_nothing_more(text, secrets):
    once = redact(text, secrets)
    assert redact(once, secrets) == once


@given(st.integers(8, 30))
def test_a_secret_that_the_end_of_a_message_cuts_off_is_removed(kept):
    secret = "abcdefghijklmnopqrstuvwxyz0123"
    assert redact(f"invalid key {secret[:kept]}", [secret]) == f"invalid key {MASK}"


def test_a_short_value_is_not_searched_for_within_words():
    assert redact("the test of tests", ["test"]) == "the test of tests"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://user:pw@proxy:3128/x", "http://***@proxy:3128/x"),
        ("url='https://token@host'", "url='https://***@host'"),
        ("http://u:p@ss@host/", "http://***@host/"),
        (r'{"url":"https:\/\/u:pw@host\/v1"}', r'{"url":"https:\/\/***@host\/v1"}'),
        ("https://h/v1?key=abc&alt=sse", "https://h/v1?key=***&alt=sse"),
        ("https://h/?a=1&X-Amz-Signature=0f0f&b=2", "https://h/?a=1&X-Amz-Signature=***&b=2"),
        ("https://h/?api_key=a#b", "https://h/?api_key=***#b"),
        ("https://h/?access_token=a", "https://h/?access_token=***"),
        ("https://h/?password=a", "https://h/?password=***"),
        ("Authorization: Bearer opaque-1", "Authorization: Bearer ***"),
        ('{"authorization": "Basic dXNlcg=="}', '{"authorization": "Basic ***"}'),
        ("you sent Bearer 0123456789abcdef", "you sent Bearer ***"),
        ("host=h password=secret1 user=u", "host=h password=*** user=u"),
        ('{"api_key": "abcdef", "x": 1}', '{"api_key": "***", "x": 1}'),
        (r"{\"apiKey\": \"abcdef\"}", r"{\"apiKey\": \"***\"}"),
        (f"key {PEM}end", "key ***\nend"),
        (f"key {json.dumps(PEM)}", 'key "***\\n"'),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE", "***"),
        (f"token {JWT}.", "token ***."),
        ("AIzaSyA0123456789abcdefghijklmnopqrstuvw", "***"),
        ("Incorrect API key provided: sk-proj-0123456789abcdefghij.", "Incorrect API key provided: ***."),
        ("ya29.a0AfH6SMBx", "***"),
        ("hf_abcdefghijklmnopqrstuvwxyz", "***"),
    ],
)
def test_a_secret_is_recognised_by_its_place_or_form(text, expected):
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "gs://bucket/a@b/c.jsonl",
        "https://a.example/see?x=1#y, mail me@example.org",
        "API key not valid. Please pass a valid API key.",
        "Basic authentication is required; max_tokens=5, `limits.tokens_per_minute`: 7",
        "`runner.environment_secrets: {'GOOGLE_API_KEY': 'projects/…/secrets/…/versions/latest'}`",
        "Expected a connection string, `postgresql://user:password@host:5432/database`;",
        "`sink.dsn_env`: the environment variable 'LLMBEAM_POSTGRES_DSN' is not set.",
        "FATAL: password authentication failed for user",
        "The Gemini Developer API needs a key: found neither a password in the connection nor `GOOGLE_API_KEY`",
        "https://console.cloud.google.com/dataflow/jobs/europe-west1/2026?project=p",
    ],
)
def test_other_texts_are_not_changed(text):
    assert redact(text) == text


def test_all_texts_of_plain_data_are_redacted_and_their_names_kept():
    data = {"api_key": ["x topsecret1", 3, None], "b": {"c": ("topsecret1",)}}
    assert redact_all(data, ["topsecret1"]) == {"api_key": ["x ***", 3, None], "b": {"c": ["***"]}}


def test_the_secrets_of_an_environment_are_found_by_name_and_in_urls():
    environment = {
        "OPENAI_API_KEY": "the-openai-key",
        "AIRFLOW__CORE__FERNET_KEY": "the-fernet-key",
        "MY_CODE": "the-named-one",
        "HTTPS_PROXY": "http://me:p%40ssword@proxy:3128",
        "DSN": "host=h password='it''s a \\'pass\\''",
        "GOOGLE_APPLICATION_CREDENTIALS": "/a/path.json",
        "TOKENIZERS_PARALLELISM": "disabled",
        "PWD": "/dags/somewhere",
        "PATH": "/usr/bin",
    }
    found = secrets_of(environment, ["MY_CODE"])
    basic = base64.b64encode(b"me:p@ssword").decode()
    assert {"the-openai-key", "the-fernet-key", "the-named-one", "p%40ssword", "p@ssword", basic} <= set(found)
    assert not {"/a/path.json", "disabled", "/dags/somewhere", "/usr/bin"} & set(found)
    assert "p@ssword" not in redact(f"407 for http://me:p%40ssword@proxy:3128, {basic}, p@ssword", found)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("https://h/v1", None),
        ("gs://bucket/a@b?.jsonl", None),
        ("/data/a@b", None),
        ("https://u:p@h/v1", "a user or a password"),
        ("https://u:p/w@h/v1", "a user or a password"),
        ("s3://key:secret@bucket/x", "a user or a password"),
        ("https://h/v1?key=k", "a query or a fragment"),
        ("https://h/v1#k", "a query or a fragment"),
    ],
)
def test_what_a_url_must_not_hold_is_named(url, fault):
    assert url_fault(url) == fault


def test_a_key_is_told_from_the_name_of_a_variable():
    assert has_secret_form("hf_abcdefghijklmnopqrst")
    assert not has_secret_form("OPENAI_API_KEY")
