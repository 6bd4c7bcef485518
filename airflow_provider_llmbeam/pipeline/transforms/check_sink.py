"""The check of the sink on a worker, before requests to the model."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from airflow_provider_llmbeam.pipeline import sinks
from airflow_provider_llmbeam.pipeline.secrets import load_environment
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner.worker_secrets import sink_needs_worker_secrets


def after_sink_check(root: beam.Pipeline, requests: beam.PCollection, spec: JobSpec) -> beam.PCollection:
    """Delays the requests until a worker has checked that the sink can store the answers.

    Applies only if the workers alone have the key of the sink; otherwise `sinks.check` has checked it at launch.
    """
    if not sink_needs_worker_secrets(spec.runner, spec.sink):
        return requests
    checked = root | "BeforeTheModel" >> beam.Impulse() | "CheckSink" >> beam.ParDo(CheckSink(spec))
    return requests | "SinkIsChecked" >> beam.Map(lambda request, _: request, beam.pvalue.AsSingleton(checked))


class CheckSink(beam.DoFn):
    """Checks the sink once.

    Raises:
        JobSpecError: The sink cannot store the answers.
        JobFailedError: The sink does not answer.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec

    def setup(self) -> None:
        """Sets the keys of the sink."""
        load_environment(self._spec.environment_secrets)

    def process(self, _: bytes) -> Iterator[bool]:
        """Checks the sink."""
        sinks.check_here(self._spec)
        yield True
