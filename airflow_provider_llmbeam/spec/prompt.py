"""How one row becomes one prompt."""

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
    """An address that leads nowhere would show only when the first paid answer is checked."""
    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            raise ValueError(f"has a `$ref` that leads nowhere: {reference!r}") from None


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        if isinstance(reference := part.get("$ref"), str):
            yield reference
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from _references(inner)


class Media(SpecModel):
    """One image, audio, video or document sent along with each prompt.

    Attributes:
        uri: Template of its address per row (`gs://…` for Gemini, `https://…` or `data:` for others).
        mime_type: E.g. `image/png`; left out, the ending of the rendered address decides.
    """

    uri: str
    mime_type: str | None = None

    _template = field_validator("uri")(_check_template)


class PromptTemplate(SpecModel):
    """One prompt per row, rendered on the workers by Jinja2 in a sandbox.

    `row` and `variables` are in scope; a name that does not exist is an error of that row, an empty value
    (`None`) renders as nothing.

    Attributes:
        template: E.g. `Summarise: {{ row.text }}`. Airflow never renders this field.
        system: System instruction, the same for every row; a template too.
        variables: Plain values for the templates. These Airflow does render, once per run.
        output_schema: JSON Schema of the answer. The server is asked for it and the answer is checked against
            it; an answer that fails in spite of `max_repairs` ends in the dead letter.
        max_repairs: How often a row is asked again, with the reason, when its answer is not valid. One that was
            cut at `max_output_tokens` is not: it would be cut again.
        media: What to send along with the text.
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
