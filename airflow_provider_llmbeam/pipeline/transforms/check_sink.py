"""A look at the sink from a worker, before the model is paid."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from airflow_provider_llmbeam.pipeline import sinks
from airflow_provider_llmbeam.pipeline.secrets import load_environment
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner.worker_secrets import sink_needs_worker_secrets


def once_the_sink_is_checked(root: beam.Pipeline, requests: beam.PCollection, spec: JobSpec) -> beam.PCollection:
    """Holds the requests back until a worker has found that the sink can take the answers.

    Only where its key is on the workers alone: elsewhere this was found at launch, `sinks.check`.
    """
    if not sink_needs_worker_secrets(spec.runner, spec.sink):
        return requests
    checked = root | "BeforeTheModel" >> beam.Impulse() | "CheckSink" >> beam.ParDo(CheckSink(spec))
    return requests | "SinkIsChecked" >> beam.Map(lambda request, _: request, beam.pvalue.AsSingleton(checked))


class CheckSink(beam.DoFn):
    """Checks the sink once.

    Raises:
        JobSpecError: It cannot take the answers.
        JobFailedError: It does not answer.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec

    def setup(self) -> None:
        """Fetches the keys of the sink."""
        load_environment(self._spec.environment_secrets)

    def process(self, _: bytes) -> Iterator[bool]:
        """Looks at the sink."""
        sinks.check_here(self._spec)
        yield True
