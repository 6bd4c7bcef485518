"""Keys that the workers of a job on Dataflow need."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.runner import DataflowRunner, Runner
from airflow_provider_llmbeam.spec.sink import MilvusSink, PostgresSink, Sink

_EXAMPLE = "'projects/…/secrets/…/versions/latest'"


def missing_worker_secrets(runner: DataflowRunner, sink: Sink, *, needs_api_key: bool) -> str | None:
    """Describes, as the second half of a sentence, a key that the workers lack; `None` if they lack none.

    A custom image may contain keys, so with one nothing is reported. Servers that may not require a key (a
    self-hosted OpenAI API, Milvus) are not checked.
    """
    if runner.container_image is not None:
        return None
    given = runner.environment_secrets
    if needs_api_key and not {"GOOGLE_API_KEY", "GEMINI_API_KEY"} & given.keys():
        return (
            "runs on Dataflow (`runner`), whose workers do not have the environment of this machine, and `model` "
            "needs `GOOGLE_API_KEY` there: name a Google Cloud project in `model.project`, for Vertex AI with the "
            "workers' own service account, or the secret that holds the key, `runner.environment_secrets: "
            f"{{'GOOGLE_API_KEY': {_EXAMPLE}}}`"
        )
    if isinstance(sink, PostgresSink) and sink.dsn_env not in given:
        return (
            "runs on Dataflow (`runner`), whose workers have neither the environment of this machine nor "
            f"the connections of Airflow, and `sink` needs {sink.dsn_env!r} there: name the secret that holds "
            f"the connection string, `runner.environment_secrets: {{{sink.dsn_env!r}: {_EXAMPLE}}}`, or use a "
            "sink that the service account of the workers may write, of type 'bigquery' or 'files'"
        )
    return None


def sink_needs_worker_secrets(runner: Runner, sink: Sink) -> bool:
    """Whether only the workers may have the key and the network of the sink, so that they have to check it."""
    return isinstance(runner, DataflowRunner) and isinstance(sink, PostgresSink | MilvusSink)
