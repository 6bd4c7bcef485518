"""Entries of the journal: encoded, and decoded from files that others may have written, too."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import IO, Any

import orjson

from airflow_provider_llmbeam.engine.journal.segment_name import segment_of
from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.state_version import is_newer, newer_state
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.spec.fields.failure_kind import FAILURE_KINDS
from airflow_provider_llmbeam.spec.model.tier import SERVICE_TIERS
from airflow_provider_llmbeam.spec.nesting import MAX_DEPTH

_log = logging.getLogger(__name__)

#: Maximum length of a line, so that a file without line breaks is not read into memory as a whole.
MAX_LINE_BYTES = 16 * 2**20
#: Maximum number of prompts that a verdict names, so that one on a frequent answer is no line of megabytes.
MAX_ABOUT = 100
_MAX_COUNT = 10**12
_MAX_SECONDS = 1e12
#: Files that Beam opens on Cloud Storage read lines byte by byte: 100,000 entries took 16 s.
_READ_BYTES = 2**20

#: Fields that only the report of the run needs.
_OF_THIS_RUN = {"rejected_at", "held_seconds", "failed_at", "began_at", "request_id"}
#: Counts that are left out of most entries, as they are 0.
_ZERO = ("sheds", "mended", *(f"{name}_tokens" for name in Tokens._fields[3:]))
#: Fields that few entries have.
_SELDOM = ("mean_logprob", "score_logprob", "citations", "reasoning", "category")
#: Counts of tokens, and their attributes.
_TOKENS = {f"{name}_tokens": f"tokens.{name}" for name in Tokens._fields}


def _fields_of(outcome: type[Outcome]) -> dict[str, str]:
    """Returns the fields of an entry, and their attributes in an outcome."""
    names = [field.name for field in dataclasses.fields(outcome) if field.name not in _OF_THIS_RUN | {"kind"}]
    return {key: path for name in names for key, path in (_TOKENS if name == "tokens" else {name: name}).items()}


_FIELDS, _REFUSAL_FIELDS = _fields_of(Completion), _fields_of(Failure)
_values, _refusal_values = attrgetter(*_FIELDS.values()), attrgetter(*_REFUSAL_FIELDS.values())


@dataclass(frozen=True)
class Entry:
    """One journal line.

    Attributes:
        fingerprint: Fingerprint of the prompt.
        job: Job that requested the answer.
        outcome: The answer, or the refusal of one.
        end: Offset after it in its segment.
    """

    fingerprint: str
    job: str
    outcome: Outcome
    end: int = dataclasses.field(default=0, compare=False)


def encode_entry(fingerprint: str, job: str, outcome: Outcome, about: Sequence[str] = ()) -> bytes:
    """Encodes an answer, or a refused one, as one line.

    Args:
        fingerprint: Fingerprint of the prompt.
        job: Job that requested the answer.
        outcome: The answer, or the refusal of one.
        about: Fingerprints of the prompts that a verdict is about, of which the first `MAX_ABOUT` are stored: the
            verdict is removed with what is known of these.
    """
    entry: dict[str, Any] = {"fingerprint": fingerprint, "job": job}
    if isinstance(outcome, Failure):
        entry["refused"] = outcome.kind
        entry.update(zip(_REFUSAL_FIELDS, _refusal_values(outcome), strict=True))
    else:
        entry.update(zip(_FIELDS, _values(outcome), strict=True))
    # Usual values are left out, as there is a line for each row.
    if outcome.service_tier == "standard":
        del entry["service_tier"]
    for name in _ZERO:
        if not entry.get(name):
            entry.pop(name, None)
    if about:
        entry["about"] = list(about[:MAX_ABOUT])
    for name in _SELDOM:
        if entry.get(name) is None:
            entry.pop(name, None)
    try:
        return orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)  # 1.3 us where `json` takes 15
    except TypeError:  # half of a surrogate pair, or an integer of more than 64 bits
        return json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def decode_entry(line: bytes, end: int = 0) -> Entry:
    """Decodes a line. Of a repeated field the last value counts.

    Args:
        line: The line.
        end: Offset after it in its segment.

    Raises:
        ValueError: The line is not an entry; the message says why.
        NewerEntryError: A newer version of the package wrote it.
    """
    try:
        fields = _from_json(line.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if type(fields) is not dict:
        raise ValueError(f"it is a JSON {type(fields).__name__}, not an object")
    is_refusal = "refused" in fields
    checks, required = (_REFUSAL_CHECKS, _REFUSAL_REQUIRED) if is_refusal else (_CHECKS, _REQUIRED)
    for name, value in fields.items():
        is_valid = checks.get(name)
        if is_valid is None:
            if name == "version" and is_newer(value):
                raise NewerEntryError(value)
            raise ValueError(f"it has a field {name[:40]!r} that this version does not know")
        if not is_valid(value):
            raise ValueError(f"its field `{name}` is {_shown(value)}")
    if not fields.keys() >= required:
        raise ValueError(f"it has no field `{min(required - fields.keys())}`")
    fingerprint, job = fields.pop("fingerprint"), fields.pop("job", "")
    fields.pop("about", None)
    fields["tokens"] = Tokens(*[fields.pop(name, 0) for name in _TOKENS])
    if is_refusal:
        return Entry(fingerprint, job, Failure(kind=fields.pop("refused"), **fields), end)
    return Entry(fingerprint, job, Completion(**fields), end)


class NewerEntryError(Exception):
    """A newer version of the package wrote the line; its argument is the version of the format."""


def read_segment(uri: str, open_file: Callable[[str], IO[bytes]], begin: int = 0) -> Iterator[Entry]:
    """Reads a segment.

    Invalid lines are passed over with one warning, and their prompts are sent again: a crash leaves a line
    incomplete, and a directory that jobs share has the lines of all of them.

    Args:
        uri: Address of the segment, or of a part of one, which another process may meanwhile have completed.
        open_file: Opens it.
        begin: Offset of the first line that is read.

    Raises:
        JobFailedError: A newer version of the package wrote it.
    """
    lines = passed_over = 0
    first = ""
    try:
        file = _opened(uri, open_file)
    except (PermissionError, IsADirectoryError) as error:
        _log.warning("Journal %r cannot be read, and its prompts are sent again: %s", uri, error)
        return
    with file:
        if begin:
            file.seek(begin)
        for end, line in _lines(file, begin):
            lines += 1
            try:
                if len(line) > MAX_LINE_BYTES:
                    raise ValueError(f"it is longer than {MAX_LINE_BYTES:,} bytes")
                entry = decode_entry(line, end)
            except NewerEntryError as error:
                raise newer_state(uri, *error.args) from None
            except ValueError as error:
                passed_over += 1
                first = first or f"line {lines}: {str(error)[:200]}"
            else:
                yield entry
    if passed_over:
        _log.warning(
            "Journal %r: %d of %d lines are no entries and were passed over; their prompts are sent again. "
            "The first is %s.",
            uri,
            passed_over,
            lines,
            first,
        )


def _opened(uri: str, open_file: Callable[[str], IO[bytes]]) -> io.BufferedReader:
    def opened(address: str) -> io.BufferedReader:
        file: Any = open_file(address)
        return io.BufferedReader(file, _READ_BYTES)

    if (segment := segment_of(uri)) == uri:
        return opened(uri)
    try:
        part = opened(uri)
        part.peek(1)  # a file on Cloud Storage that does not exist can be opened (Beam 2.77)
    except Exception:  # noqa: BLE001 - filesystems have errors of their own for a missing file
        return opened(segment)
    return part


def _lines(file: io.BufferedReader, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yields the lines, each with the offset after its line break; of a line that is too long, its beginning."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        offset += len(line)
        yield (offset if line.endswith(b"\n") else offset + 1), line
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES + 1)
            offset += len(line)


def _shown(value: Any) -> str:
    """Describes a value by its beginning."""
    return repr(value)[:40] if isinstance(value, str | int | float | None) else f"a JSON {type(value).__name__}"


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_unicode(value: Any) -> bool:
    """Whether a value is a text without half a surrogate pair: Beam encodes it as UTF-8 to group by it."""
    return type(value) is str and (value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_COUNT


def _is_seconds(value: Any) -> bool:
    return type(value) in (float, int) and 0 <= value <= _MAX_SECONDS


def _is_count_or_none(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_seconds_or_none(value: Any) -> bool:
    return value is None or _is_seconds(value)


def _is_json(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether a decoded value is at most `depth` deep, and all its numbers are finite."""
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    if kind is not list and kind is not dict:
        return True
    values = value if kind is list else value.values()
    if {*map(type, values)} == {float}:  # vectors: 3,072 numbers
        return math.isfinite(sum(values)) or all(map(math.isfinite, values))
    return depth > 0 and all(_is_json(inner, depth - 1) for inner in values)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_from_json = json.JSONDecoder(parse_constant=_no_number).decode

_CHECKS: dict[str, Callable[[Any], bool]] = {
    "fingerprint": _is_unicode,
    "job": _is_unicode,
    "about": lambda value: type(value) is list and all(map(_is_unicode, value)),
    "text": _is_text,
    "parsed": _is_json,
    "model": _is_unicode,
    "finish_reason": _is_unicode,
    **dict.fromkeys(_TOKENS, _is_count),
    "cost_nano_usd": _is_count_or_none,
    "attempts": _is_count,
    "rejections": _is_count,
    "sheds": _is_count,
    "repairs": _is_count,
    "mended": _is_count,
    "latency_seconds": _is_seconds,
    "first_token_seconds": _is_seconds_or_none,
    "padded_tokens": _is_count,
    "sent_at": _is_seconds,
    "answered_at": _is_seconds,
    "service_tier": lambda value: type(value) is str and value in SERVICE_TIERS,
    "reasoning": _is_text,
    **dict.fromkeys(
        ("mean_logprob", "score_logprob"),
        lambda value: type(value) in (float, int) and -_MAX_SECONDS <= value <= 0,
    ),
    "citations": lambda value: (
        type(value) is list and all(type(each) is dict for each in value) and _is_json(value)
    ),
}
_REFUSAL_CHECKS: dict[str, Callable[[Any], bool]] = {
    **{name: _CHECKS[name] for name in ("fingerprint", "job", "about", *_REFUSAL_FIELDS) if name in _CHECKS},
    "refused": lambda value: type(value) is str and value in FAILURE_KINDS,
    "message": _is_unicode,
    "max_repairs": _is_count,
    "category": _is_unicode,
    "http_status": lambda value: value is None or _is_count(value),
}
_REFUSAL_REQUIRED = _REFUSAL_CHECKS.keys() - {"about", "service_tier", "category", *_ZERO}
_REQUIRED = frozenset(
    {"fingerprint", "input_tokens", "output_tokens"}
    | {field.name for field in dataclasses.fields(Completion) if field.default is dataclasses.MISSING} - {"tokens"}
)
