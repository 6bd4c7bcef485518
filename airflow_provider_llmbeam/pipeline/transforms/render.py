"""Rendering of prompts."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam
import jinja2

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.context import NO_RUN, RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, RenderedRow, Row, failed_row
from airflow_provider_llmbeam.pipeline.privacy.masker import PersonalDataError, masker_of
from airflow_provider_llmbeam.pipeline.privacy.vault import without_vault
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.prompt import PromptTemplate
from airflow_provider_llmbeam.spec.prompt.template import RowEnvironment


class PromptRenderer:
    """Renders the prompt of a row.

    Args:
        template: The job's templates.
        is_embedded: Whether vectors are requested, so that an empty text is an error.
    """

    def __init__(self, template: PromptTemplate, *, is_embedded: bool = False) -> None:
        self._is_embedded = is_embedded
        environment = RowEnvironment()
        self._begin_row = environment.begin_row
        self._text = _compiled(environment, template.template)
        self._system = _compiled(environment, template.system) if template.system else None
        self._media = [(_compiled(environment, media.uri), media.mime_type) for media in template.media]
        self._variables = dict(template.variables)

    def render(self, row: Row) -> Prompt:
        """Renders the templates for one row.

        Raises:
            Exception: Any error of the code in the template; a missing column is a `jinja2.UndefinedError`, too
                much a `TemplateLimitError`, and an empty text to embed a `ValueError`.
        """
        self._begin_row()
        scope = {"row": without_vault(row), "variables": self._variables}
        text = valid_text(self._text.render(scope))
        if self._is_embedded and not text.strip():
            # APIs reject a whole request for one empty text, and isolating it takes many more.
            raise ValueError("the text is empty, so it has no vector")
        return Prompt(
            text=text,
            system=valid_text(self._system.render(scope)) if self._system else None,
            media=tuple((valid_text(uri.render(scope)), mime_type) for uri, mime_type in self._media),
        )


def _compiled(environment: jinja2.Environment, text: str) -> jinja2.Template:
    template = environment.from_string(text)
    # Jinja copies these for each rendering; its chain of mappings takes 3.5 of 6 µs for that.
    template.globals = dict(template.globals)
    return template


class Render(CountingDoFn):
    """Converts a row to `(fingerprint, RenderedRow)`; a row that cannot be rendered is output as `failed`."""

    def __init__(self, spec: JobSpec, context: RunContext = NO_RUN) -> None:
        super().__init__(context)
        self._spec = spec

    def setup(self) -> None:
        """Compiles the templates once per worker."""
        spec = self._spec
        self._masker = masker_of(spec)
        self._renderer = PromptRenderer(spec.prompt, is_embedded=spec.embedding is not None)
        self._fingerprint = spec.fingerprinter()

    def process(self, row: Row) -> Iterator[tuple[str, RenderedRow] | beam.pvalue.TaggedOutput]:
        """Renders one row."""
        try:
            prompt = self._renderer.render(row)
            if self._masker is not None:
                row, prompt = self._masker.prompt(row, prompt)
        except Exception as error:  # noqa: BLE001 - a template may raise anything, and only this row fails
            self.count("failed")
            yield beam.pvalue.TaggedOutput(FAILED, failed_row(row, *self._fault(error)))
            return
        rendered = (row, prompt.text, prompt.system, prompt.media, prompt.media_tokens)
        yield self._fingerprint(prompt.text, prompt.system, prompt.media), rendered

    def _fault(self, error: Exception) -> tuple[FailureKind, str]:
        if isinstance(error, PersonalDataError):
            return "personal_data", str(error)
        kind = "" if isinstance(error, jinja2.UndefinedError) else f"{type(error).__name__}: "
        message = f"{kind}{error}"
        return "template_error", message if self._masker is None else self._masker.message(message)
