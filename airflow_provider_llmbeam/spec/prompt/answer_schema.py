"""JSON Schemas of answers: which are accepted, and checks that end whatever the schema and the answer are."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from re import _parser  # type: ignore[attr-defined]  # the only way to the width of a pattern
from typing import Any

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from airflow_provider_llmbeam.spec.nesting import MAX_DEPTH, depth_exceeds

#: Maximum number of values in a schema. `jsonschema` takes about 20 µs for each while a Dag is parsed.
MAX_NODES = 10_000
#: Maximum number of keywords that are applied to one answer; those of large lists and objects count more, and so
#: do errors that decide nothing. An answer of 80,000 pairs of numbers takes 570,000.
MAX_STEPS = 1_000_000
#: Maximum CPU time for all patterns of one answer, in seconds. A pattern takes microseconds, unless it backtracks.
PATTERN_SECONDS = 0.5
#: Maximum of the minimal length of a match. `regex` spells it out when it compiles: `((a{100}){100}){100}` takes
#: more than 600 MB, `(a{100}){100}` 6 MB.
MAX_PATTERN_WIDTH = 10_000

_MAX_MESSAGE = 500
#: Quadratic in `jsonschema`, where they also follow references without applying a keyword.
_UNSUPPORTED = {
    "unevaluatedItems": "use `items` after `prefixItems`",
    "unevaluatedProperties": "list all `properties` in one place and use `additionalProperties`",
}
_SIZED = (dict, list)
_TOO_MANY = "checking it takes too many steps"
#: Steps of keywords that take longer than the others, 20 µs where those take 4.
_STEPS = {"$ref": 5, "$dynamicRef": 5}
#: Characters of a value that are written in the time of one step.
_CHARACTERS = 64

#: Called with the validator (its declared type has no `descend`), the value of the keyword, the checked value, and
#: the schema.
_Keyword = Callable[[Any, Any, Any, Mapping[str, Any]], Iterable[jsonschema.ValidationError] | None]


class TooManyStepsError(Exception):
    """Checking a value takes more steps than are allowed."""


class AnswerSchema:
    """Checks values against a JSON Schema (draft 2020-12), in bounded time and without network.

    Patterns are searched by the package `regex`, which knows all of Python's syntax and more, and stops at a time
    limit; Python's own `re` holds the interpreter lock until `^([a-z]+)+$` has failed, which can take years. A
    `$ref` must have its target in the schema, as `jsonschema` would fetch it. `$schema` is ignored.

    It checks one value at a time: not for several threads.

    Args:
        schema: The schema.

    Raises:
        ValueError: The schema is not valid, or not supported; the message is the second half of a sentence.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        if depth_exceeds(schema):
            raise ValueError(f"is nested more than {MAX_DEPTH} levels deep")
        _check_size(schema)
        _check_is_schema(schema)
        self._patterns: dict[str, Any] = {}
        self._steps_left = 0
        self._patterns_until = 0.0
        self._is_on_loop = False
        resource = DRAFT202012.create_resource(schema)
        # A `$schema` would replace the class, and with it the limits, wherever the root is referred to.
        root = {name: part for name, part in schema.items() if name != "$schema"}
        self._inspect(root, Registry().resolver_with_root(resource))
        own: dict[str, _Keyword] = {
            "additionalProperties": self._additional_properties,
            "anyOf": self._any_of,
            "oneOf": self._one_of,
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "uniqueItems": self._unique_items,
        }
        keywords = {**jsonschema.Draft202012Validator.VALIDATORS, **own}
        limited: Any = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
            jsonschema.Draft202012Validator,
            {name: self._counted(check, _STEPS.get(name, 1)) for name, check in keywords.items()},
        )

        def is_valid(validator: Any, instance: Any) -> bool:  # for `if`, `not` and `contains`
            if (error := next(validator.iter_errors(instance), None)) is not None:
                self._count_text(len(error.message))
            return error is None

        limited.is_valid = is_valid
        self._validator = limited(root, registry=Registry())
        self._try()

    def mismatch(self, value: Any, max_steps: int | None = None) -> str | None:
        """Returns the first difference between a value and the schema, or `None` if the value is valid.

        Args:
            value: A value of JSON types, of at most `MAX_DEPTH` levels.
            max_steps: Maximum number of steps; `None` for `MAX_STEPS`, beyond which no value is valid.

        Raises:
            TooManyStepsError: It takes more than `max_steps`.
        """
        self._is_on_loop = max_steps is not None
        seconds = PATTERN_SECONDS if max_steps is None else PATTERN_SECONDS * max_steps / MAX_STEPS
        try:
            error = self._first_error(value, MAX_STEPS if max_steps is None else max_steps, seconds)
        except TooManyStepsError as excess:
            if max_steps is not None:
                raise
            return str(excess)
        except RecursionError:
            return "it is too deep for the references of the schema"
        except Exception as error:  # noqa: BLE001 - e.g. an OverflowError of `multipleOf`; the answer is billed
            return _shorten(f"it cannot be checked ({type(error).__name__}: {error})")
        return None if error is None else _shorten(f"at {error.json_path}: {error.message}")

    def _first_error(
        self, value: Any, max_steps: int, pattern_seconds: float = PATTERN_SECONDS
    ) -> jsonschema.ValidationError | None:
        self._steps_left = max_steps
        self._patterns_until = time.thread_time() + pattern_seconds
        try:
            return next(self._validator.iter_errors(value), None)
        except BaseException as error:
            # `rpds`, in which `referencing` keeps schemas, panics where Python's recursion limit is reached in it.
            # Its error is no `Exception`, and cannot be imported.
            if type(error).__name__ == "PanicException":
                raise RecursionError(str(error)) from None
            raise

    def _inspect(self, part: Any, resolver: Any) -> None:
        """Checks what `jsonschema` would only meet in a paid answer; all parts are taken for schemas."""
        if isinstance(part, list):
            for inner in part:
                self._inspect(inner, resolver)
        if not isinstance(part, dict):
            return
        if isinstance(part.get("$id"), str):
            resolver = resolver.in_subresource(DRAFT202012.create_resource(part))
        if isinstance(dialect := part.get("$schema"), str):
            raise ValueError(f"has a `$schema` below its root ({dialect!r}): it is one schema of draft 2020-12")
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(reference := part.get(keyword), str):
                _check_reference(keyword, reference, resolver)
        if isinstance(pattern := part.get("pattern"), str):
            self._compile(pattern)
        if isinstance(patterns := part.get("patternProperties"), dict):
            for pattern in patterns:
                self._compile(pattern)
        for name, inner in part.items():
            if name in _UNSUPPORTED:
                raise ValueError(f"has `{name}`, which is not supported: {_UNSUPPORTED[name]}")
            self._inspect(inner, resolver)

    def _compile(self, pattern: str) -> None:
        import regex  # 20 ms, for the few schemas with patterns

        width, _ = _parser.parse(pattern).getwidth()
        if width > MAX_PATTERN_WIDTH:
            raise ValueError(
                f"has a pattern that matches no text of less than {width:,} characters: {pattern[:100]!r}; "
                f"at most {MAX_PATTERN_WIDTH:,} are supported"
            )
        try:
            self._patterns[pattern] = regex.compile(pattern)
        except RecursionError as error:
            raise ValueError(f"is too complex ({error})") from None
        except regex.error as error:
            raise ValueError(f"has a pattern that cannot be compiled: {pattern[:100]!r} ({error})") from None

    def _try(self) -> None:
        """Rejects references in a circle, or that double with each level: they fail for every answer.

        Which of the two limits a circle reaches first depends on the process: Airflow raises Python's recursion
        limit from 1,000 to 5,000 when it copies an operator.
        """
        examples: tuple[Any, ...] = (None, 0, "", [], {})
        for value in examples:
            try:
                self._first_error(value, MAX_NODES)
            except (RecursionError, TooManyStepsError):
                raise ValueError(
                    f"cannot be used: checking even {json.dumps(value)} takes too many steps. Does a `$ref` lead "
                    "back to itself, or does each level of the schema refer to the next one more than once?"
                ) from None

    def _counted(self, keyword: _Keyword, own_steps: int) -> _Keyword:
        def counted(
            validator: Any, expected: Any, instance: Any, schema: Mapping[str, Any]
        ) -> Iterable[jsonschema.ValidationError] | None:
            steps = own_steps
            if type(instance) in _SIZED:
                steps += len(instance) >> 4
            if type(expected) in _SIZED:
                steps += len(expected) >> 4
            self._steps_left -= steps
            if self._steps_left < 0:
                raise TooManyStepsError(_TOO_MANY)
            return keyword(validator, expected, instance, schema)

        return counted

    def _count_text(self, characters: int) -> None:
        """Counts a text that was made of a value, such as the message of an error that decides nothing."""
        self._steps_left -= characters // _CHARACTERS
        if self._steps_left < 0:
            raise TooManyStepsError(_TOO_MANY)

    def _any_of(
        self, validator: Any, parts: Sequence[Any], instance: Any, _: Mapping[str, Any]
    ) -> Iterator[jsonschema.ValidationError]:
        """Takes the first error of each part: `jsonschema` keeps all of them, 700 MB for one answer."""
        for part in parts:
            if (error := next(validator.descend(instance, part), None)) is None:
                return
            self._count_text(len(error.message))
            del error  # before the next part, whose own parts may have as long ones
        yield jsonschema.ValidationError(f"{instance!r} is not valid under any of the given schemas")

    def _one_of(
        self, validator: Any, parts: Sequence[Any], instance: Any, _: Mapping[str, Any]
    ) -> Iterator[jsonschema.ValidationError]:
        valid = 0
        for part in parts:
            if (error := next(validator.descend(instance, part), None)) is None:
                valid += 1
            else:
                self._count_text(len(error.message))
            del error
        if valid != 1:
            yield jsonschema.ValidationError(
                f"{instance!r} is valid under {valid} of the given schemas, not under 1"
            )

    def _unique_items(
        self, validator: Any, is_required: bool, instance: Any, _: Mapping[str, Any]
    ) -> Iterator[jsonschema.ValidationError]:
        """Compares texts: `jsonschema` compares each object with each other one, 12 s for 5,000 objects."""
        if not is_required or not validator.is_type(instance, "array"):
            return
        texts = set[str]()
        for item in instance:
            texts.add(text := self._canonical(item))
            self._count_text(len(text))
        if len(texts) < len(instance):
            yield jsonschema.ValidationError(f"{instance!r} has non-unique elements")

    def _canonical(self, value: Any) -> str:
        """Returns the same text for values that JSON Schema takes for equal: `1` and `1.0`, not `1` and `true`."""
        if isinstance(value, _SIZED):  # a value in it takes 1 to 2 µs
            self._count_text(_CHARACTERS * (1 + len(value) // 4))
        match value:
            case dict():
                parts = (f"{json.dumps(name)}:{self._canonical(value[name])}" for name in sorted(value))
                return f"{{{','.join(parts)}}}"
            case list():
                return f"[{','.join(map(self._canonical, value))}]"
            case float() if value.is_integer():
                return str(int(value))
        return json.dumps(value)

    def _matches(self, pattern: str, text: str) -> bool:
        seconds = self._patterns_until - time.thread_time()
        try:
            if seconds > 0:  # in a thread, others go on meanwhile
                found = self._patterns[pattern].search(text, timeout=seconds, concurrent=not self._is_on_loop)
                return found is not None
        except TimeoutError:
            pass
        raise TooManyStepsError(f"pattern {pattern[:100]!r} takes longer than {PATTERN_SECONDS:g} s")

    def _pattern(
        self, validator: Any, pattern: str, instance: Any, _: Mapping[str, Any]
    ) -> Iterator[jsonschema.ValidationError]:
        if validator.is_type(instance, "string") and not self._matches(pattern, instance):
            yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")

    def _pattern_properties(
        self, validator: Any, parts: Mapping[str, Any], instance: Any, _: Mapping[str, Any]
    ) -> Iterator[jsonschema.ValidationError]:
        if validator.is_type(instance, "object"):
            for pattern, part in parts.items():
                for name, value in instance.items():
                    if self._matches(pattern, name):
                        yield from validator.descend(value, part, path=name, schema_path=pattern)

    def _additional_properties(
        self, validator: Any, part: Any, instance: Any, schema: Mapping[str, Any]
    ) -> Iterator[jsonschema.ValidationError]:
        if not validator.is_type(instance, "object"):
            return
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, value in instance.items():
            if name in properties or any(self._matches(pattern, name) for pattern in patterns):
                continue
            if part is False:
                message = f"Additional properties are not allowed ({name!r} was unexpected)"
                yield jsonschema.ValidationError(message)
            else:
                yield from validator.descend(value, part, path=name)


def _shorten(message: str) -> str:
    """Leaves out the middle of a message: it quotes the value, and a repair sends it to the model."""
    return message if len(message) <= _MAX_MESSAGE else f"{message[: _MAX_MESSAGE // 2]} … {message[-200:]}"


def _check_size(schema: Mapping[str, Any]) -> None:
    rest: list[Any] = [schema]
    for _ in range(MAX_NODES):
        if not rest:
            return
        part = rest.pop()
        rest += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    if rest:
        raise ValueError(f"has more than {MAX_NODES:,} values")


def _check_is_schema(schema: Mapping[str, Any]) -> None:
    try:
        jsonschema.Draft202012Validator.check_schema(dict(schema))
    except jsonschema.SchemaError as error:
        raise ValueError(f"is not a JSON Schema ({error.message} at {error.json_path})") from None
    except (RecursionError, OverflowError) as error:  # of a deep schema; of `re` for a deep pattern, or `a{1e99}`
        raise ValueError(f"is too complex ({error})") from None


def _check_reference(keyword: str, reference: str, resolver: Any) -> None:
    try:
        target = resolver.lookup(reference).contents
    except Unresolvable:
        raise ValueError(
            f"has a `{keyword}` without a target in the schema: {reference!r}; nothing is fetched from a network"
        ) from None
    if not isinstance(target, dict | bool):
        raise ValueError(f"has a `{keyword}` to something that is no schema: {reference!r}")
