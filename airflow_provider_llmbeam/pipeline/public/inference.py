"""A transform that adds the answers of a model to rows, for pipelines in Python and in Beam YAML."""

# Without `from __future__ import annotations`: Beam YAML reads the types of the parameters.
from collections.abc import Iterator, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import RunInference
from apache_beam.options.pipeline_options import StandardOptions
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.window import GlobalWindows, TimestampCombiner

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.elements import (
    FAILED,
    AnsweredRow,
    FailedRow,
    Request,
    failed_row,
)
from airflow_provider_llmbeam.pipeline.media.feature import IdentifyMedia
from airflow_provider_llmbeam.pipeline.public.answer_fields import AnswerFields
from airflow_provider_llmbeam.pipeline.public.event_time import BatchInPlace, Carry, FanOutInPlace, in_place
from airflow_provider_llmbeam.pipeline.public.handler import LLMModelHandler, pipeline_job
from airflow_provider_llmbeam.pipeline.public.rows import RenderRows, Rows
from airflow_provider_llmbeam.pipeline.transforms.reuse import MakeRequest
from airflow_provider_llmbeam.spec.sink import AnswerColumns

#: Tag of the rows with answers, if failed rows have an output; that of Beam's exception handling.
GOOD = "good"


class LLMInference(beam.PTransform):
    """Renders a prompt for each row, and adds the answer of a model to the row.

    Equal prompts of a bounded collection are sent once. Each row keeps its timestamp and its windows. Without
    `error_handling` the first failed row ends the pipeline; with it, rows with answers are the output `good`.

    Args:
        prompt: Template of the prompt in Jinja2, e.g. `Summarise: {{ row.text }}`, or the fields of a
            `PromptTemplate`, e.g. with `system` and `output_schema`.
        model: The model, e.g. `{"type": "gemini", "name": "gemini-3.5-flash-lite", "project": "my-project"}`.
        generation: Parameters of the answer, see `Generation`.
        limits: Quotas, retries, timeouts and budget, see `Limits`.
        batching: Size of batches, see `Batching`.
        journal_uri: Directory of the journal, which stores answers as they arrive, so that a retry, or another
            run, does not pay for them again. By default there is none.
        answer_columns: Form of an answer with an `output_schema`: `struct`, one field `answer` with the fields of
            the schema; `flat`, a field for each property of the schema; `json`, a field `answer` with JSON text.
        environment_secrets: Environment variables that workers set before the first request, each from a secret of
            Secret Manager: `{"GOOGLE_API_KEY": "projects/p/secrets/gemini-key/versions/latest"}`.
        error_handling: `{"output": NAME}` gives failed rows an output of that name: the row as `element`, the
            reason as `msg`, and an empty `stack`.

    Raises:
        JobSpecError: Names each invalid parameter, its value and the expected value.
    """

    def __init__(
        self,
        prompt: Any,
        model: Any,
        generation: Any = None,
        limits: Any = None,
        batching: Any = None,
        journal_uri: str | None = None,
        answer_columns: AnswerColumns = "struct",
        environment_secrets: dict[str, str] | None = None,
        error_handling: Any = None,
    ) -> None:
        super().__init__()
        parts = {"generation": generation, "limits": limits, "batching": batching}
        given = {name: part for name, part in parts.items() if part is not None}
        self._spec = pipeline_job(prompt, model, **given)
        extras = self._spec.generation.extra_columns
        self._answer = AnswerFields.of(self._spec.prompt.output_schema, answer_columns, extras)
        self._errors = _error_output(error_handling)
        self._handler = LLMModelHandler[Request](
            self._spec.model,
            generation=self._spec.generation,
            limits=self._spec.limits,
            batching=self._spec.batching,
            output_schema=self._spec.prompt.output_schema,
            max_repairs=self._spec.prompt.max_repairs,
            journal_uri=journal_uri,
            prompt_of=lambda request: request.prompt,
            fingerprint_of=lambda request: request.fingerprint,
            environment_secrets={} if environment_secrets is None else environment_secrets,
        )

    def expand(self, rows: beam.PCollection) -> Any:
        """Adds the steps."""
        form = Rows.of(rows, self._answer)
        prompts, *refused = self._prompts(rows | "Read" >> beam.Map(form.read))
        if rows.is_bounded:
            prompts._windowing = _windowing_of_groups(rows)
            grouped = prompts | "Group" >> beam.GroupByKey()
        else:
            grouped = prompts | "Single" >> beam.MapTuple(lambda fingerprint, row: (fingerprint, [row]))
        requests = grouped | "MakeRequest" >> beam.ParDo(MakeRequest())
        requests._windowing = Windowing(GlobalWindows())
        size = self._handler.batch_elements_kwargs()
        inferred = (
            requests
            | "Batch" >> beam.ParDo(BatchInPlace(size["max_batch_size"], size["element_size_fn"]))
            | "RunInference" >> RunInference(self._handler.with_no_batching())
            | "FanOut" >> beam.ParDo(FanOutInPlace()).with_outputs(FAILED, main="rows")
        )
        for outcomes in (inferred["rows"], inferred[FAILED]):
            outcomes._windowing = rows.windowing
        add_answer = beam.ParDo(AddAnswer(form)).with_output_types(form.answered_type)
        answered = inferred["rows"] | "AddAnswer" >> add_answer.with_outputs(FAILED, main=GOOD)
        failed = (*refused, inferred[FAILED], answered[FAILED]) | "Failed" >> beam.Flatten()
        if self._errors is None:
            _ = failed | "Raise" >> beam.Map(_raise)
            return answered[GOOD]
        return {
            GOOD: answered[GOOD],
            self._errors: failed | "Errors" >> beam.Map(form.failed).with_output_types(form.failed_type),
        }

    def _prompts(self, rows: beam.PCollection) -> list[beam.PCollection]:
        """Returns `(fingerprint, RenderedRow)` in the global window, then collections of `FailedRow`s."""
        rendered = rows | "Render" >> beam.ParDo(RenderRows(self._spec)).with_outputs(FAILED, main="rows")
        is_global = rows.windowing.windowfn == GlobalWindows()
        carried = rendered["rows"] | "Carry" >> beam.ParDo(Carry(is_global))
        # As in Beam's `Reshuffle`: `WindowInto` would be one more step for each row.
        carried._windowing = Windowing(GlobalWindows())
        if not self._spec.prompt.media:
            return [carried, rendered[FAILED]]
        identified = (
            carried
            | "BatchMedia" >> beam.ParDo(BatchInPlace(64))
            | "IdentifyMedia" >> beam.ParDo(IdentifyMedia(self._spec)).with_outputs(FAILED, main="rows")
        )
        refused = identified[FAILED] | "RefusedInPlace" >> beam.Map(in_place)
        refused._windowing = rows.windowing
        return [identified["rows"], rendered[FAILED], refused]


class AddAnswer(beam.DoFn):
    """Adds answers to rows; an answer that does not fit the fields is a failed row."""

    def __init__(self, form: Rows) -> None:
        super().__init__()
        self._form = form

    def process(self, answered: AnsweredRow) -> Iterator[Any]:
        """Adds one answer."""
        try:
            yield self._form.answered(answered.row, answered.completion)
        except (ValueError, OverflowError) as error:
            failed = failed_row(answered.row, "invalid_output", f"the answer does not fit its fields: {error}")
            yield beam.pvalue.TaggedOutput(FAILED, failed)


def _windowing_of_groups(rows: beam.PCollection) -> Windowing:
    """Returns the windowing in which equal prompts of a bounded collection are one group.

    In a streaming pipeline the watermark stays at the earliest row of a group until the group is complete: beyond
    it, rows are late for later steps, which drop them. In other pipelines no row is late, and Beam's direct runner
    groups 20,000 rows in 5 s with the default, and in 30 s otherwise (2.77, two cores).
    """
    if rows.pipeline.options.view_as(StandardOptions).streaming:
        return Windowing(GlobalWindows(), timestamp_combiner=TimestampCombiner.OUTPUT_AT_EARLIEST)
    return Windowing(GlobalWindows())


def _raise(failed: FailedRow) -> None:
    """Ends the pipeline.

    Raises:
        JobFailedError: Always.
    """
    raise JobFailedError(
        f"A row has no answer: {failed.failure.kind}: {failed.failure.message}. Set `error_handling` to "
        "{'output': 'failed'} to receive failed rows in an output of their own, and `journal_uri` so that answers "
        "are not paid for again."
    )


def _error_output(error_handling: Any) -> str | None:
    """Returns the name of the output of failed rows, or `None`.

    Raises:
        JobSpecError: It is not `{"output": NAME}`.
    """
    if error_handling is None:
        return None
    output = error_handling.get("output") if isinstance(error_handling, Mapping) else None
    if not isinstance(output, str) or not output or output == GOOD or len(error_handling) > 1:
        raise JobSpecError(
            "`error_handling`: must be {'output': NAME}, with the name of the output of failed rows, which is not "
            f"{GOOD!r}; got {error_handling!r}."
        )
    return output
