"""The check of the sink and the state on a worker, before requests to the model."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from airflow_provider_llmbeam.pipeline import sinks
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.launch.writable import check_writable
from airflow_provider_llmbeam.pipeline.secrets import load_environment
from airflow_provider_llmbeam.pipeline.sinks.ownership import claim
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import LocalRunner, sink_needs_worker_secrets


def wait_for_sink_check(
    root: beam.Pipeline, requests: beam.PCollection, spec: JobSpec, context: RunContext
) -> beam.PCollection:
    """Delays the requests until a worker has checked that it can store the answers.

    Applies to workers elsewhere, with an account of their own; a job on this machine is checked at launch.
    """
    if isinstance(spec.runner, LocalRunner):
        return requests
    checked = root | "BeforeTheModel" >> beam.Impulse() | "CheckSink" >> beam.ParDo(CheckSink(spec, context))
    passed = beam.Map(lambda request, _: request, beam.pvalue.AsSingleton(checked))
    return requests | "SinkIsChecked" >> passed.with_output_types(requests.element_type)


class CheckSink(beam.DoFn):
    """Checks the directories of the job once, and the sink if only the workers have its key.

    Raises:
        JobSpecError: The answers cannot be stored.
        JobFailedError: A filesystem or the sink does not answer.
    """

    def __init__(self, spec: JobSpec, context: RunContext) -> None:
        self._spec = spec
        self._mark = context.mark

    def setup(self) -> None:
        """Sets the keys of the sink."""
        load_environment(self._spec.environment_secrets)

    def process(self, _: bytes) -> Iterator[bool]:
        """Checks directories and sink, and records the owner of the sink."""
        if self._mark is not None:
            self._mark.check()
        check_writable(self._spec)
        if sink_needs_worker_secrets(self._spec.runner, self._spec.sink):
            sinks.check_here(self._spec)
        claim(self._spec)
        yield True
