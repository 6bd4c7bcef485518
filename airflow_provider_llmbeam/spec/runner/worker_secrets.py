"""Which keys the workers of a job on Dataflow need, and whether they get them."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.model import GeminiModel, Model
from airflow_provider_llmbeam.spec.runner import DataflowRunner, Runner
from airflow_provider_llmbeam.spec.sink import MilvusSink, PostgresSink, Sink

_EXAMPLE = "'projects/…/secrets/…/versions/latest'"


def missing_worker_secrets(runner: DataflowRunner, model: Model, sink: Sink) -> str | None:
    """Says, as the second half of a sentence, which key the workers would not find; `None`: they find all.

    An image of one's own may hold keys, so with one nothing is said. Servers that may do without a key (OpenAI's
    API on one's own machine, Milvus) ask for none.
    """
    if runner.container_image is not None:
        return None
    given = runner.environment_secrets
    if _needs_a_key(model) and not {"GOOGLE_API_KEY", "GEMINI_API_KEY"} & given.keys():
        return (
            "runs on Dataflow (`runner`), whose workers see nothing of this machine's environment, and `model` "
            "needs `GOOGLE_API_KEY` there: name a Google Cloud project in `model.project`, for Vertex AI with the "
            "workers' own service account, or the secret that holds the key, `runner.environment_secrets: "
            f"{{'GOOGLE_API_KEY': {_EXAMPLE}}}`"
        )
    if isinstance(sink, PostgresSink) and sink.dsn_env not in given:
        return (
            "runs on Dataflow (`runner`), whose workers see neither this machine's environment nor Airflow's "
            f"connections, and `sink` needs {sink.dsn_env!r} there: name the secret that holds the connection "
            f"string, `runner.environment_secrets: {{{sink.dsn_env!r}: {_EXAMPLE}}}`, or take a sink that the "
            "workers' own service account may write, of type 'bigquery' or 'files'"
        )
    return None


def sink_needs_worker_secrets(runner: Runner, sink: Sink) -> bool:
    """Whether only the workers may hold the key of the sink, and reach its server: they have to look at it."""
    return isinstance(runner, DataflowRunner) and isinstance(sink, PostgresSink | MilvusSink)


def _needs_a_key(model: Model) -> bool:
    return isinstance(model, GeminiModel) and model.project is None
