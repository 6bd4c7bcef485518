"""Templates that render one prompt per row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import jsonschema
from jinja2 import TemplateSyntaxError
from jinja2.sandbox import SandboxedEnvironment
from pydantic import Field, field_validator
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from airflow_provider_llmbeam.spec.base import SpecModel


def _check_template(template: str) -> str:
    try:
        SandboxedEnvironment().from_string(template)
    except TemplateSyntaxError as error:
        raise ValueError(f"is not a Jinja2 template (line {error.lineno}: {error.message})") from None
    return template


def _check_references(schema: Mapping[str, Any]) -> None:
    """Rejects a reference without a target, which would otherwise fail when the first paid answer is checked."""
    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            raise ValueError(f"has a `$ref` without a target: {reference!r}") from None


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        if isinstance(reference := part.get("$ref"), str):
            yield reference
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from _references(inner)


class Media(SpecModel):
    """An image, audio, video or document that is sent with each prompt.

    Attributes:
        uri: Template of its address (`gs://…` for Gemini, `https://…` or `data:` for others).
        mime_type: MIME type, e.g. `image/png`. `None`: derived from the extension of the rendered address.
    """

    uri: str
    mime_type: str | None = None

    _template = field_validator("uri")(_check_template)


class PromptTemplate(SpecModel):
    """The prompt of a row, rendered on the workers by Jinja2 in a sandbox.

    `row` and `variables` are in scope. An undefined name is an error of that row; `None` renders as an empty
    text.

    Attributes:
        template: Template of the prompt, e.g. `Summarise: {{ row.text }}`. Airflow does not render this field.
        system: Template of the system instruction.
        variables: Values for the templates. Airflow renders these, once per run.
        output_schema: JSON Schema of the answer. It is sent to the server, and the answer is validated against
            it; a row without a valid answer after `max_repairs` goes to the dead letter.
        max_repairs: Maximum number of times that a prompt is sent again, with the validation error, if its answer
            is not valid. An answer truncated at `max_output_tokens` is not repaired: it would be truncated again.
        media: Media sent with the text.
    """

    template: Annotated[str, Field(min_length=1)]
    system: str | None = None
    variables: Mapping[str, Any] = Field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    max_repairs: Annotated[int, Field(ge=0, le=5)] = 1
    media: tuple[Media, ...] = ()

    @field_validator("template", "system")
    @classmethod
    def _is_template(cls, template: str | None) -> str | None:
        return template if template is None else _check_template(template)

    @field_validator("output_schema")
    @classmethod
    def _is_schema(cls, schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        if schema is not None:
            try:
                jsonschema.Draft202012Validator.check_schema(dict(schema))
            except jsonschema.SchemaError as error:
                raise ValueError(f"is not a JSON Schema ({error.message} at {error.json_path})") from None
            _check_references(schema)
        return schema
