"""Texts for people: logs, errors, the terminal, the dead letter and the report, without secrets. Pure.

Others wrote parts of them: servers, rows, and whoever may write to a shared folder. Answers of a model and rows
are data and are never changed.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote_plus, unquote

MASK = "***"
#: Shorter values are not searched for: they occur within ordinary words. Eight is also the shortest password that
#: NIST SP 800-63B allows.
MIN_CHARACTERS = 8

# Patterns are text: `re` compiles and caches each at its first use, and a Dag file that is parsed uses none.
#: Characters that a reader does not see, that a terminal obeys, or that change the order of those that follow: all
#: controls but line breaks and tabs, Unicode's own line breaks, and the marks of its bidirectional algorithm.
_HIDDEN = "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
#: Names whose values are secret; `tokens`, a number, is not among them.
_SECRET_NAME = (
    r"(?i)(?:api|access|private|secret|service|signing|fernet)_?key|secret|passw|passphrase|_pwd"
    r"|token(?!s|izer|_audience)|credential|authorization|bearer|signature|dsn|sql_alchemy_conn|airflow_conn_"
    r"|connection_string|llmbeam_header_"
)
#: Names of variables that end like a secret, and those that hold a path.
_KEY_VARIABLE = r"(?i)_KEY$"
_PATH_VARIABLE = r"(?i)(_FILE|_PATH|_DIR|_CREDENTIALS)$"

#: `user:password` is what the messages of this package themselves suggest.
_URL_USER = r"(:\\?/\\?/)(?!user:password@)[^\s/?#\"'<>\\]*@"
_QUERY_VALUE = r"(?i)([?&][\w.\-]*(?:key|token|secret|passw(?:or)?d|pwd|sig|signature|credential)=)[^\s&\"'<>#\\]+"
#: `projects/…/secrets/…` names a secret and is none.
_NAMED_VALUE = (
    r"(?i)("
    r"(?:authorization|api[-_ ]?key|(?:access|auth|refresh|id)[-_]?token|client[-_]secret|password|passwd"
    r"|private[-_]key)"
    r"\\?[\"']?\s*[:=]\s*\\?[\"']?(?:(?:bearer|basic)\s+)?)"
    r"(?!projects/|\*\*\*)[^\s\"',;&<>\\`]{4,}"
)
#: Each match of it contains one of these.
_WORDS = ("authorization", "key", "token", "secret", "passw")
_SCHEME_VALUE = r"(?i)(?<![\w-])((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{16,}"
#: A password in a connection string of libpq, either of its forms.
_PARAMETER = r"password\s*=\s*(?:'((?:[^'\\]|\\.)*)'|([^\s&']+))"
#: Keys and tokens that are known by their form: PEM, JWT, Google, OpenAI and Hugging Face.
_FORMS = (
    r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<![\w-])(?:eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?|AIza[\w-]{30,}|ya29\.[\w-]{8,}|sk-[\w-]{16,}|hf_\w{16,})"
)
_URL_SAFE = str.maketrans("+/", "-_")
#: What URLs, HTML, JSON and `repr` write for characters, and the line breaks of a folded text. A `\` may be before
#: any character, several where a text was encoded again.
_ESCAPES = (
    r"(?:%[0-9A-Fa-f]{2})+|&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[a-z]{2,6});|(?:\\+u[0-9A-Fa-f]{4})+"
    r"|(?:\\+x[0-9A-Fa-f]{2})+|\\+(?![ux][0-9A-Fa-f]{0,3}\Z).?|\u240d?\n[ \t]*"
)
#: The beginning of an escape at the end of a text that is cut off, and its longest length.
_CUT_OFF = r"(?:%[0-9A-Fa-f]?|&#?\w{0,6}|\\[ux][0-9A-Fa-f]{0,3})\Z"
_CUT_OFF_CHARACTERS = 8
#: Times that a text may be encoded; each costs a pass over it.
_LAYERS = 3
_BEGINNINGS = ("PRIVATE KEY-----", "eyJ", "AIza", "ya29.", "sk-", "hf_")


def visible(text: str) -> str:
    """Returns a text in which hidden characters are shown: C0 controls as their pictures, others by number."""
    return text if text.isprintable() else re.sub(_HIDDEN, _picture, text)  # of 400 characters 0.3 and 10 µs


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Returns a text for people: without secrets, and with its hidden characters shown.

    Removes the given secrets, as they are and as URLs, HTML, JSON, `repr`, Base64 and hex encode them, also over
    several lines; users and passwords in URLs; values of query parameters, headers and fields with names such as
    `key`, `token` or `password`; and what has the form of a private key, a JWT, or a key of Google, OpenAI or
    Hugging Face. A secret that the end of the text cuts off is removed, too: servers' messages are kept up to a
    maximum length.

    Args:
        text: Any text.
        secrets: Values to remove; see `secrets_of`. Those shorter than `MIN_CHARACTERS` are ignored.
    """
    text = _without(visible(text), _known(tuple(secrets)))
    lower = text.lower()
    # The expressions take 300 µs for 400 characters (measured); most messages contain nothing that they look for.
    if "@" in text:
        text = re.sub(_URL_USER, rf"\1{MASK}@", text)
    if "=" in text:
        text = re.sub(_QUERY_VALUE, rf"\1{MASK}", text)
    if any(word in lower for word in _WORDS):
        text = re.sub(_NAMED_VALUE, rf"\1{MASK}", text)
    if "bearer" in lower or "basic" in lower:
        text = re.sub(_SCHEME_VALUE, rf"\1{MASK}", text)
    if any(beginning in text for beginning in _BEGINNINGS):
        text = re.sub(_FORMS, MASK, text)
    return text


def redact_all(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Returns plain data with all its texts redacted; names of fields are kept."""
    secrets = tuple(secrets)
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {name: redact_all(inner, secrets) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_all(inner, secrets) for inner in value]
    return value


def secrets_of(environment: Mapping[str, str], names: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the secrets of an environment.

    Args:
        environment: Variables of a process.
        names: Variables that hold secrets, besides those whose names say so. The passwords of URLs, such as those
            of proxies, and the secret fields of JSON objects are found in every variable.
    """
    named = set(names)
    found: dict[str, None] = {}
    for name, value in environment.items():
        says_so = is_secret_name(name) or re.search(_KEY_VARIABLE, name)
        if name in named or (says_so and not re.search(_PATH_VARIABLE, name)):
            found[value] = None
        for part in _passwords(value):
            found[part] = None
    return tuple(found)


def is_secret_name(name: str) -> bool:
    """Returns whether the name of a variable or a field says that its value is secret."""
    return bool(re.search(_SECRET_NAME, name))


def has_secret_form(value: str) -> bool:
    """Returns whether a value has the form of a key or a token."""
    return bool(re.search(_FORMS, value))


def url_fault(url: str) -> str | None:
    """Returns what a URL holds that must not be written to logs and reports; `None` if it holds nothing of that.

    In an HTTP address every `@` counts: one after a `/` may belong to a password that is not encoded.
    """
    scheme, _, rest = url.partition("://")
    is_http = scheme.lower() in ("http", "https")
    if "@" in (rest if is_http else rest.partition("/")[0]):
        return "a user or a password"
    return "a query or a fragment" if is_http and ("?" in rest or "#" in rest) else None


def _passwords(value: str) -> Iterable[str]:
    if "@" in value and "://" in value:
        # The last `@` before the path ends the password, although a valid URL encodes the others.
        netloc = value.partition("://")[2].partition("?")[0]
        user, _, password = netloc.rpartition("@")[0].partition(":")
        if password:
            yield password
            yield unquote(password)
            yield base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    if value.lstrip().startswith("{"):
        yield from _secrets_in_json(value)
    if scheme := re.match(r"(?i)(?:bearer|basic)\s+", value):  # the value of a header
        yield value[scheme.end() :]
    for quoted, plain in re.findall(_PARAMETER, value):
        yield re.sub(r"\\(.)", r"\1", quoted) if quoted else unquote(plain)


def _secrets_in_json(value: str) -> Iterable[str]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return
    for name, inner in found.items():
        if isinstance(inner, str) and is_secret_name(name):
            yield inner


@lru_cache(maxsize=8)
def _known(secrets: tuple[str, ...]) -> tuple[str, ...]:
    """Returns all secrets in all encodings that have no escapes, and without what looks like one."""
    forms = {visible(form) for each in secrets if len(each) >= MIN_CHARACTERS for form in _encodings(each.strip())}
    # The blank is no part of an escape, as what cuts off a text would be.
    plain = {text[:-1] for form in forms for text, _ in _unescaped(f"{form} ")}
    return tuple(forms | {each for each in plain if len(each) >= MIN_CHARACTERS})


def _encodings(secret: str) -> Iterable[str]:
    yield secret
    yield quote_plus(secret)
    content = secret.encode(errors="replace")
    yield content.hex()
    yield content.hex().upper()
    # Within a longer value, such as the user and the password of `Basic`, it begins at any of the three bytes that
    # four letters encode. The first and last letters also hold bits of its neighbours.
    for before, shared in ((0, 0), (1, 2), (2, 3)):
        letters = base64.b64encode(bytes(before) + content).decode()
        form = letters[shared : (before + len(content)) * 8 // 6]
        yield form
        yield form.translate(_URL_SAFE)


def _without(text: str, forms: Collection[str]) -> str:
    if not forms:
        return text
    text = _masked(text, [place for form in forms for place in _found(text, form)])
    return _masked(
        text,
        [
            (places[start][0], places[end - 1][1])
            for plain, places in _unescaped(text)
            for form in forms
            for start, end in _found(plain, form)
        ],
    )


def _found(text: str, form: str) -> Iterator[tuple[int, int]]:
    """Yields where a value begins and ends in a text, also one that the end of the text cuts off."""
    start = text.find(form[:MIN_CHARACTERS])
    while start != -1:
        if form.startswith(part := text[start : start + len(form)]):
            yield start, start + len(part)
        start = text.find(form[:MIN_CHARACTERS], start + 1)


def _masked(text: str, places: Iterable[tuple[int, int]]) -> str:
    parts, done = [], 0
    for start, end in sorted(places):
        if start >= done:
            parts += [text[done:start], MASK]
        done = max(done, end)
    return "".join([*parts, text[done:]])


def _unescaped(text: str) -> Iterator[tuple[str, Sequence[tuple[int, int]]]]:
    """Yields a text without one layer of escapes after another, each also without an escape that is cut off.

    Yields:
        The text, and where each of its characters begins and ends in the given one.
    """
    places: list[tuple[int, int]] = []
    for _ in range(_LAYERS):
        cut_off = re.search(_CUT_OFF, text[-_CUT_OFF_CHARACTERS:])
        if not places and (cut_off or re.search(_ESCAPES, text)):
            places = [(index, index + 1) for index in range(len(text))]
        if cut_off:
            yield text[: -len(cut_off[0])].rstrip("\\"), places
        parts, left, done = [], list[tuple[int, int]](), 0
        for match in re.finditer(_ESCAPES, text):
            start, end = match.span()
            parts += [text[done:start], meant := _meaning(match[0])]
            left += places[done:start] + [(places[start][0], places[end - 1][1])] * len(meant)
            done = end
        if not done:
            return
        text, places = "".join([*parts, text[done:]]), left + places[done:]
        yield text, places


def _meaning(escape: str) -> str:
    """Returns the characters that an escape stands for: none for a line break."""
    if escape.startswith("%"):
        return unquote(escape)
    if escape.startswith("&"):
        return html.unescape(escape)
    numbers = [int(each, 16) for each in re.findall(r"u(.{4})", escape)]
    if numbers:
        return b"".join(each.to_bytes(2, "big") for each in numbers).decode("utf-16-be", "replace")
    if numbers := [int(each, 16) for each in re.findall(r"x(..)", escape)]:
        return bytes(numbers).decode(errors="replace")
    sign = escape.lstrip("\\")
    return sign if len(sign) == 1 and sign not in "nr" else ""


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else f"⟨{code:04X}⟩"
