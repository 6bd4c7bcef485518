"""Keys that the workers of a job on Dataflow need."""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_llmbeam.spec.runner import DataflowRunner, Runner, workers_have_keys
from airflow_provider_llmbeam.spec.sink import KafkaSink, MilvusSink, PostgresSink, Sink

_EXAMPLE = "'projects/…/secrets/…/versions/latest'"


def missing_worker_secrets(runner: DataflowRunner, sink: Sink, key_variables: Collection[str]) -> str | None:
    """Describes, as the second half of a sentence, a key that the workers lack; `None` if they lack none.

    A custom image may contain keys, so with one nothing is reported. Servers that may not require a key (a
    self-hosted OpenAI API, Milvus) are not checked.

    Args:
        runner: The runner.
        sink: The sink.
        key_variables: Variables that may hold the key of the model; none if it requires no key.
    """
    if runner.container_image is not None:
        return None
    given = runner.environment_secrets
    if key_variables and given.keys().isdisjoint(key_variables):
        name = next(iter(key_variables))
        vertex = ", or set `model.project` to use Vertex AI" if name == "GOOGLE_API_KEY" else ""
        return f"the workers need `{name}` for the model: name its secret, {{{name!r}: {_EXAMPLE}}}{vertex}"
    if isinstance(sink, PostgresSink) and sink.dsn_env not in given:
        return (
            f"the workers need {sink.dsn_env!r} for the sink: name the secret that holds it, "
            f"{{{sink.dsn_env!r}: {_EXAMPLE}}}, or use a sink of type 'bigquery' or 'files'"
        )
    if isinstance(sink, KafkaSink) and sink.conn_id is not None and sink.config_env not in given:
        return (
            f"the workers need {sink.config_env!r} for the sink: name the secret that holds it, "
            f"{{{sink.config_env!r}: {_EXAMPLE}}}"
        )
    return None


def sink_needs_worker_secrets(runner: Runner, sink: Sink) -> bool:
    """Whether only the workers may have the key and the network of the sink, so that they have to check it."""
    return workers_have_keys(runner) and isinstance(sink, PostgresSink | MilvusSink | KafkaSink)
