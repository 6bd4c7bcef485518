"""Texts for people: logs, errors, the terminal, the dead letter and the report, without secrets. Pure.

Others wrote parts of them: servers, rows, and whoever may write to a shared folder. Answers of a model and rows
are data and are never changed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote

MASK = "***"
#: Shorter values are not searched for: they occur within ordinary words. Eight is also the shortest password that
#: NIST SP 800-63B allows.
MIN_CHARACTERS = 8

# Patterns are text: `re` compiles and caches each at its first use, and a Dag file that is parsed uses none.
#: Characters that a reader does not see, that a terminal obeys, or that change the order of those that follow: all
#: controls but line breaks and tabs, and the marks of Unicode's bidirectional algorithm.
_HIDDEN = "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
#: Names whose values are secret; `tokens`, a number, is not among them.
_SECRET_NAME = (
    r"(?i)(?:api|access|private|secret|service|signing|fernet)_?key|secret|passw|passphrase|_pwd"
    r"|token(?!s|izer|_audience)|credential|authorization|bearer|signature|dsn|sql_alchemy_conn|airflow_conn_"
    r"|connection_string"
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
_BEGINNINGS = ("PRIVATE KEY-----", "eyJ", "AIza", "ya29.", "sk-", "hf_")


def visible(text: str) -> str:
    """Returns a text in which hidden characters are shown: C0 controls as their pictures, others by number."""
    return text if text.isprintable() else re.sub(_HIDDEN, _picture, text)  # of 400 characters 0.3 and 10 µs


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Returns a text for people: without secrets, and with its hidden characters shown.

    Removes the given secrets, as they are and as URLs, JSON, `repr`, Base64 and hex encode them; users and
    passwords in URLs; values of query parameters, headers and fields with names such as `key`, `token` or
    `password`; and what has the form of a private key, a JWT, or a key of Google, OpenAI or Hugging Face. A secret
    that the end of the text cuts off is removed, too: servers' messages are kept up to a maximum length.

    Args:
        text: Any text.
        secrets: Values to remove; see `secrets_of`. Those shorter than `MIN_CHARACTERS` are ignored.
    """
    text = visible(text)
    for form in _known(tuple(secrets)):
        if form[:MIN_CHARACTERS] in text:
            text = _without_cut_end(text.replace(form, MASK), form)
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
    """Returns all secrets in all encodings, the longest first."""
    forms = {visible(form) for each in secrets if len(each) >= MIN_CHARACTERS for form in _encodings(each.strip())}
    return tuple(sorted(forms, key=len, reverse=True))


def _encodings(secret: str) -> Iterable[str]:
    yield secret
    yield quote(secret)
    yield quote(secret, safe="")
    yield quote_plus(secret)
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
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


def _without_cut_end(text: str, secret: str) -> str:
    start = text.find(secret[:MIN_CHARACTERS], max(0, len(text) - len(secret)))
    while start != -1:
        if secret.startswith(text[start:]):
            return text[:start] + MASK
        start = text.find(secret[:MIN_CHARACTERS], start + 1)
    return text


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else f"⟨{code:04X}⟩"
