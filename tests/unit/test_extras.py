"""What a job says where the packages of an extra are missing."""

from __future__ import annotations

import asyncio
import re
import sys
from importlib.metadata import metadata

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import sinks
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.privacy.patterns import PatternFinder
from airflow_provider_llmbeam.pipeline.queues.kafka_client import client_package
from airflow_provider_llmbeam.pipeline.sinks import milvus
from airflow_provider_llmbeam.pipeline.stream.http import served
from airflow_provider_llmbeam.pipeline.stream.state import StreamState
from airflow_provider_llmbeam.providers.distilled.vectors import require_sklearn
from airflow_provider_llmbeam.spec import JobSpec, MilvusSink
from airflow_provider_llmbeam.spec.safety.privacy import PatternsDetector

JOB = {
    "name": "job",
    "source": {"uri": "in.jsonl", "key": ["id"]},
    "prompt": {"template": "{{ row.text }}"},
    "model": {"type": "echo"},
    "sink": {"type": "postgres", "table": "answers"},
    "state_uri": "state",
}
MILVUS = MilvusSink(type="milvus", uri="https://milvus.example", collection="rows")


async def serve_metrics() -> None:
    async with served(JobSpec.parse(JOB), StreamState(), "127.0.0.1:0"):
        pass


PARTS = {
    "cascade": ("sklearn", require_sklearn),
    "kafka": ("confluent_kafka", lambda: client_package("source")),
    "milvus": ("pymilvus", lambda: milvus.check(MILVUS, OutputColumns(()))),
    "postgres": ("psycopg", lambda: sinks.check(JobSpec.parse(JOB))),
    "privacy": ("presidio_analyzer", lambda: PatternFinder(PatternsDetector(type="patterns"))),
    "stream": ("prometheus_client", lambda: asyncio.run(serve_metrics())),
}
#: Of providers that load this package, and not the other way round.
OF_PROVIDERS = {"common-ai", "openlineage"}


@pytest.mark.parametrize(("extra", "package", "use"), [(extra, *part) for extra, part in PARTS.items()])
def test_a_part_whose_extra_is_missing_is_refused_with_the_command_that_installs_it(
    extra, package, use, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"{sinks.__name__}.postgres", raising=False)
    monkeypatch.delattr(sinks, "postgres", raising=False)
    command = re.escape(f"`pip install 'airflow-provider-llmbeam[{extra}]'`")
    with pytest.raises(
        JobSpecError, match=f" needs the extra '{extra}' where the job runs, .*{command}.*{package}"
    ):
        use()


def test_every_extra_that_a_job_may_need_has_its_sentence():
    extras = set(metadata("airflow-provider-llmbeam").get_all("Provides-Extra") or ())
    assert extras - {"dev"} - OF_PROVIDERS == PARTS.keys()
