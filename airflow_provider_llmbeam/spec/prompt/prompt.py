"""Templates that render one prompt per row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import FieldFaultError, SpecModel
from airflow_provider_llmbeam.spec.characters import valid_value
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.nesting import MAX_DEPTH, changed_by_json, depth_exceeds
from airflow_provider_llmbeam.spec.prompt.answer_type import checked_schema, schema_of
from airflow_provider_llmbeam.spec.prompt.names import missing_variable, no_column, unknown_name, uses_row
from airflow_provider_llmbeam.spec.prompt.template import check_template


def row_template(template: str) -> str:
    """Validates a template that is rendered for each row.

    Raises:
        ValueError: It cannot be compiled, or uses an unknown name.
    """
    check_template(template)
    if (fault := unknown_name(template)) is not None:
        raise FieldFaultError("", fault)
    return template


class Media(SpecModel):
    """An image, audio, video or document that is sent with each prompt.

    Its bytes are sent, or its address where the server reads it itself: docs/media.md says which, and the limits.

    Attributes:
        uri: Template of its address: `gs://…`, `https://…`, `data:…`, or a file of this machine (a path, or
            `file://…`).
        mime_type: MIME type, e.g. `image/png`. `None`: derived from the extension of the rendered address.
        root: Directory, or a list of them, that rows may name files of: a path, `gs://bucket/…`,
            `https://host/…`. None: the one that the template begins with. With a template that begins with an
            expression, rows may name any file but a local one, of which they could then name any of the worker.
    """

    uri: Annotated[str, Field(min_length=1)]
    mime_type: Annotated[str, Field(pattern=r"^[a-z]+/[a-zA-Z0-9.+_-]+$")] | None = None
    root: tuple[Annotated[str, Field(min_length=1)], ...] = ()

    _template = field_validator("uri")(row_template)

    @field_validator("root", mode="before")
    @classmethod
    def _of_text(cls, root: Any) -> Any:
        return (root,) if isinstance(root, str) else () if root is None else root


class PromptTemplate(SpecModel):
    """The prompt of a row, rendered on the workers by Jinja2 in a sandbox.

    `row` and `variables` are in scope; other names, and a prompt that uses no column of `row`, are refused when
    the spec is parsed. A missing column is an error of that row, and so is a text of more than 64 million
    characters, or a row that takes longer than 10 s; `None` renders as an empty text. A text in place of a prompt
    is its `template`.

    Attributes:
        template: Template of the prompt, e.g. `Summarise: {{ row.text }}`. Airflow does not render this field.
        system: Template of the system instruction.
        variables: Values for the templates. Airflow renders these, once per run.
        output_schema: JSON Schema of the answer, or a type that has one: a pydantic class, a TypedDict, a
            dataclass, an enum; or the list of its labels, `["spam", "ham"]`. It is sent to the server, and the
            answer is validated against it; a row without a valid answer after `max_repairs` goes to the dead
            letter. A `$ref` must have its target in the schema, as nothing is fetched; `unevaluatedItems`,
            `unevaluatedProperties` and a `$schema` below the root are not supported. All patterns of an answer
            may take 0.5 s of CPU time.
        max_repairs: Maximum number of times that a prompt is sent again, with the validation error, if its answer
            is not valid. An answer truncated at `max_output_tokens` is not repaired: it would be truncated again.
        media: Media sent with the text.
        is_constant: Whether a prompt that uses no column is intended: equal prompts are sent once, so all rows
            have the same answer.
    """

    template: Annotated[str, Field(min_length=1)]
    system: str | None = None
    variables: Mapping[str, Any] = Field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    max_repairs: Annotated[int, Field(ge=0, le=5)] = 1
    media: tuple[Media, ...] = ()
    is_constant: bool = False

    @field_validator("template", "system")
    @classmethod
    def _is_template(cls, template: str | None) -> str | None:
        return template if template is None else row_template(template)

    @field_validator("variables", mode="before")
    @classmethod
    def _can_be_encoded(cls, variables: Any) -> Any:
        if depth_exceeds(variables):
            raise ValueError(f"is nested more than {MAX_DEPTH} levels deep")
        if (changed := changed_by_json(variables)) is not None:
            raise ValueError(f"has {changed}")
        return valid_value(variables)

    @field_validator("output_schema", mode="before")
    @classmethod
    def _of_a_type(cls, schema: Any) -> Any:
        return schema_of(schema)

    _is_schema = field_validator("output_schema")(checked_schema)

    @model_validator(mode="after")
    def _uses_what_it_is_given(self) -> Self:
        templates = {"template": self.template}
        if self.system is not None:
            templates["system"] = self.system
        templates |= {f"media.{place}.uri": media.uri for place, media in enumerate(self.media)}
        for field, text in templates.items():
            if (fault := missing_variable(text, self.variables)) is not None:
                raise FieldFaultError(field, fault)
        if not self.is_constant and not any(map(uses_row, templates.values())):
            raise FieldFaultError("template", no_column(self.template))
        return self


def prompt_data(value: Any) -> Any:
    """Returns the fields of a prompt that is given by its template alone, with the JSON Schema of a type.

    A type without a JSON Schema is left as it is: the validation of the prompt reports it.
    """
    value = from_text(value)
    if isinstance(value, str):
        return {"template": value}
    if isinstance(value, Mapping) and "output_schema" in value:
        try:
            return {**value, "output_schema": schema_of(value["output_schema"])}
        except ValueError:
            return value
    return value


Prompt = Annotated[PromptTemplate, BeforeValidator(prompt_data)]
