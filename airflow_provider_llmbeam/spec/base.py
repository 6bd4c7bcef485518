"""Base class of all spec values: frozen, without unknown fields, with readable validation errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as data_field
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.redaction import has_secret_form, is_secret_name, redact, url_fault
from airflow_provider_llmbeam.spec.fields.docstring import with_inherited_fields
from airflow_provider_llmbeam.spec.fields.names import check_variable
from airflow_provider_llmbeam.spec.fields.suggestion import field_path, instead_of, nearest_value
from airflow_provider_llmbeam.spec.fields.text import from_text

#: By kind of pydantic's error (docs.pydantic.dev/latest/errors/validation_errors).
_WORDS = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "callable_type": "must be a function",
    "dict_type": "must be an object with named fields",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be greater than or equal to {ge}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be less than or equal to {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "missing": "this field is needed",
    "mapping_type": "must be an object with named fields",
    "model_attributes_type": "must be an object with named fields",
    "model_type": "must be an object with named fields",
    "string_too_short": "must not be empty",
    "string_type": "must be a text",
    "timezone_aware": "must be a time with its zone, e.g. '2026-01-01T00:00:00Z'",
    "tuple_type": "must be a list",
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "this field is needed",
    "value_error": "{error}",
}


def wanted(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """Returns what a field takes, as the second half of a sentence.

    Args:
        kind: Type of pydantic's error, e.g. `greater_than`.
        message: Its message, for kinds without words of their own.
        context: Its values, e.g. `{"gt": 0}`.
    """
    if kind == "too_short":
        count = context["min_length"]
        return f"must have at least {count} {'item' if count == 1 else 'items'}"
    if kind in _WORDS:
        return _WORDS[kind].format_map({name: _without_zeros(value) for name, value in context.items()})
    return message[:1].lower() + message[1:]


def _without_zeros(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _NotShown:
    """Stands for a value that says nothing about the problem."""


NOT_SHOWN: Any = _NotShown()


class FieldFaultError(ValueError):
    """A fault that a validator of a whole value found in one of its fields.

    Args:
        field: Path of the field within the value.
        want: The expected value, as the second half of a sentence.
        got: The value found there.
        related: Other values on which the fault depends: while one of them is a template, it is not known.
    """

    def __init__(self, field: str, want: str, got: Any = NOT_SHOWN, *related: Any) -> None:
        super().__init__(f"`{field}`: {want}" if field else want)
        self.field = field
        self.want = want
        self.got = got
        self.related = related


@dataclass(frozen=True, kw_only=True)
class SpecProblem:
    """One problem of a spec.

    Attributes:
        field: Dotted path, e.g. `limits.max_in_flight`; empty for the spec as a whole.
        got: The value found there.
        want: The expected value, as the second half of a sentence.
        is_shown: Whether the text of the problem quotes the value, which may be a secret.
        related: Other values on which the problem depends.
    """

    field: str
    got: Any = data_field(repr=False)
    want: str
    is_shown: bool = True
    related: tuple[Any, ...] = data_field(default=(), repr=False)

    def __str__(self) -> str:
        sentence = f"`{_shorten(self.field, 200) or 'spec'}`: {_shorten(redact(self.want), 1000)}"
        if self.got is NOT_SHOWN or (not self.field and isinstance(self.got, Mapping)):
            return sentence if sentence.endswith("?") else f"{sentence}."
        shown = redact(repr(_outline(self.got))) if self.is_shown else "'…'"
        return f"{sentence}; got {_shorten(shown, 80)}."


class SpecModel(BaseModel):
    """A frozen value that rejects unknown fields.

    Attributes:
        text_field: Field that a text stands for where it is given instead of the value, e.g. `mode` for
            `inference="batch"`; empty for a value that is never a text.
    """

    text_field: ClassVar[str] = ""

    model_config = ConfigDict(
        frozen=True,
        # A class is built with the spec that has it, and not by itself as well, when a Dag is parsed.
        defer_build=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        # pydantic's own errors, of `OpenAIModel(api_key="…")` in a Dag file, quote the value otherwise.
        hide_input_in_errors=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Adds the inherited fields to the docstring."""
        if cls.__bases__ != (SpecModel,):
            cls.__doc__ = with_inherited_fields(cls.__doc__, cls.__bases__, cls.model_fields)

    @model_validator(mode="before")
    @classmethod
    def _text_of_a_template(cls, data: Any) -> Any:
        data = from_text(data)
        return {cls.text_field: data} if cls.text_field and isinstance(data, str) else data

    @classmethod
    def parse(cls, data: Mapping[str, Any] | Self) -> Self:
        """Builds the value from plain data.

        Raises:
            JobSpecError: Names each invalid field, its value and the expected value.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            found = " ".join(str(problem) for problem in problems_of(error, root=cls))
            raise JobSpecError(str(found)) from None

    @classmethod
    def problems(cls, data: Mapping[str, Any], *, has_connection: bool = False) -> tuple[SpecProblem, ...]:
        """Returns the problems of `data`, without raising.

        Args:
            data: Plain data.
            has_connection: Whether an Airflow connection, unread so far, may provide the project of the model.
        """
        try:
            cls.model_validate(data, context={"has_connection": has_connection})
        except ValidationError as error:
            return problems_of(error, root=cls)
        return ()


def may_have_project(project: str | None, info: ValidationInfo) -> bool:
    """Returns whether a model has a project, or an Airflow connection may provide one."""
    return bool(project) or bool((info.context or {}).get("has_connection"))


def problems_of(error: ValidationError, field: str = "", *, root: Any) -> tuple[SpecProblem, ...]:
    """Converts the errors of a pydantic validation.

    Args:
        error: The validation error.
        field: Field of the enclosing value that was validated, if any.
        root: Class or annotation of the value, which names the fields that an unknown one was meant to be.
    """
    above = (field,) if field else ()
    return tuple(_problem(item, above, root) for item in error.errors(include_url=False))


def plain_directory(uri: str) -> str:
    """Validates the address of one directory; the result ends in `/`.

    Beam's filesystems list files by pattern, and have no way to quote `*`, `?` and `[` (2.77,
    `FileSystem.translate_pattern`): `runs[1]/` would find the files of `runs1/`, and not its own.

    Raises:
        ValueError: The address is empty, or is a pattern.
    """
    uri = uri.strip()
    if not uri:
        raise ValueError("must name a directory")
    if any(sign in uri for sign in "*?["):
        raise ValueError(
            "must be one directory, not a glob: a path with *, ? or [ matches the files of other directories, and "
            "not its own"
        )
    return uri if uri.endswith("/") else f"{uri}/"


def with_type(data: Any, types: Mapping[str, str]) -> Any:
    """Sets the `type` of a source or sink without one.

    Args:
        data: Plain data.
        types: Type by a field that no other type has. Without such a field it is `files`.
    """
    if not isinstance(data, Mapping) or "type" in data:
        return data
    return {"type": next((kind for field, kind in types.items() if field in data), "files"), **data}


def http_address(address: str | None) -> str | None:
    """Validates the address of a server, and removes a `/` at its end.

    It is written to the log and to the report.

    Raises:
        ValueError: It is no HTTP address, or it may hold a secret, which the message does not repeat.
    """
    if address is None:
        return None
    if not address.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    if fault := url_fault(address):
        other = (
            "a parameter in `query`" if "query" in fault else "or in the environment variable that the spec names"
        )
        raise ValueError(
            f"must not hold {fault}, as it is written to logs and reports: a key belongs in the password of the "
            f"connection, {other}"
        )
    return address.rstrip("/")


def variable_name(name: str) -> str:
    """Validates the name of an environment variable with a secret; an empty one names none.

    Raises:
        ValueError: It is no name, perhaps the secret itself, which the message does not repeat; or it is one of
            Airflow's own.
    """
    if not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?", name) or has_secret_form(name):
        raise ValueError("must be the name of an environment variable, not the secret that it holds")
    return check_variable(name)


def without_user(uri: str | None) -> str | None:
    """Validates the address of files.

    Raises:
        ValueError: It holds a user or a password, which the message does not repeat; or it would be a local path
            that nobody means, e.g. of `str(Path("gs://my-bucket"))`, on a worker whose disk another try lacks; or
            it is that of a web page.
    """
    if uri is not None and (unmeant := _NOT_A_PATH.match(uri.strip())):
        raise ValueError(
            f"would be a local path that begins with {unmeant[0]!r}: a scheme has two slashes, e.g. 'gs://', and "
            "neither `~` nor a variable of a shell is replaced"
        )
    if uri is not None and url_fault(uri):
        raise ValueError(
            "must not hold a user or a password, as it is written to logs and reports: filesystems read their "
            "credentials from the environment or from the machine"
        )
    if uri is not None and (page := _PAGE.match(uri.strip())):
        bucket = uri.strip()[page.end() :] if page[1] else "my-bucket/…"
        raise ValueError(
            f"must be a path, or an address of files, e.g. 'gs://{bucket}': Beam reads and writes no web pages"
        )
    return uri


#: E.g. gs:/my-bucket, ~/answers and $HOME/answers.
_NOT_A_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)|~(?=/|$)|\$\{?[A-Za-z_]\w*\}?")
#: Beam has no filesystem for it (2.77); the first group is Cloud Storage.
_PAGE = re.compile(r"https?://(storage\.(?:googleapis|cloud\.google)\.com/)?")
#: Fields that may hold a secret by mistake, where the name of the secret is expected: values are never quoted.
_NEVER_SHOWN = frozenset(
    {"environment_secrets", "container_env", "api_key_env", "config_env", "dsn_env", "headers", "key_env", "query"}
)
#: Levels of lists that a message shows; `repr` fails for a value of hundreds.
_SHOWN_LEVELS = 5
#: What is said of a field that is missing.
_MEANINGS = {"key": ": the columns that identify a row, e.g. 'ticket_id'"}
_OF_PARTS = ("must be a list", "must be an object")
#: How texts begin that Airflow has rendered from an object.
_RENDERED = ("{", "[", "(", "None")
_AS_TEXT = (
    ", not text; if a template of the Dag made it, pass `task.output`, or set `render_template_as_native_obj=True`"
)


def _problem(item: Mapping[str, Any], above: Sequence[str], root: Any) -> SpecProblem:
    path = [*above, *field_path(item["loc"], root)]
    instead = instead_of(item["loc"], root) if item["loc"] else ""
    field = ".".join(path)
    got, context = item.get("input"), item.get("ctx", {})
    related: tuple[Any, ...] = ()
    want = wanted(item["type"], item["msg"], context)
    match item["type"]:
        case "extra_forbidden":
            want, got = f"there is no such field{instead and f'; {instead}'}", NOT_SHOWN
        case "missing":
            want, got = f"{want}{_MEANINGS.get(path[-1], '')}", NOT_SHOWN
        case "union_tag_not_found":
            field = f"{field}.type".lstrip(".")
        case "union_tag_invalid":
            field, got = f"{field}.type".lstrip("."), context["tag"]
            want += _meant(got, context["expected_tags"])
        case "literal_error":
            want += _meant(got, context["expected"])
        case "value_error":
            error = context["error"]
            if isinstance(error, FieldFaultError):
                path += error.field.split(".") if error.field else []
                field, want, got, related = ".".join(path), error.want, error.got, error.related
        case _ if isinstance(got, str) and got.startswith(_RENDERED) and want.startswith(_OF_PARTS):
            want += _AS_TEXT
    may_be_secret = item["type"] == "extra_forbidden" or any(map(_may_hold_secret, path))
    is_shown = not may_be_secret and not (isinstance(got, str) and url_fault(got))
    return SpecProblem(field=field, got=got, want=want, is_shown=is_shown, related=related)


def _meant(got: Any, expected: str) -> str:
    """Returns which of the expected values a wrong one was probably meant to be."""
    meant = nearest_value(got, re.findall("'([^']+)'", expected)) if isinstance(got, str) else ""
    return f" (did you mean {meant!r}?)" if meant else ""


def _may_hold_secret(name: str) -> bool:
    return name in _NEVER_SHOWN or is_secret_name(name)


def _shorten(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 3]}..."


def _outline(value: Any, levels: int = _SHOWN_LEVELS) -> Any:
    """Returns a value for a message: of an object only the names, as the value of a wrong one may be a secret."""
    if isinstance(value, Mapping):
        return {name: _Hidden() for name in value}
    if isinstance(value, list | tuple):
        return [_outline(item, levels - 1) for item in value] if levels else _Hidden()
    return value


class _Hidden:
    def __repr__(self) -> str:
        return "…"
