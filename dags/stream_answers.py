"""Answers the messages of a Kafka topic within seconds: a resident worker, started anew each hour.

The connection `kafka_default` of the type Apache Kafka names the brokers, and the topic `questions` exists. A
message is a JSON object with a `text`; its key is the user's. The answers of a key come in order, each once for
readers with `read_committed`.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.stream_inference import StreamInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")

with DAG(
    "stream_answers",
    schedule="@continuous",  # each run goes on where the last one ended
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
) as dag:
    StreamInferenceOperator(
        task_id="answer",
        source={"type": "kafka", "topic": "questions", "conn_id": "kafka_default"},
        prompt="Answer in one sentence: {{ row.text }}",
        model="gemini-3.5-flash-lite",
        limits={"requests_per_minute": 600, "budget": {"usd": 5, "over": "hour"}},
        sink={"type": "kafka", "topic": "answers", "conn_id": "kafka_default"},
        state_uri=f"{DATA}/state",
        stream={"create_topics": True},  # of the answers, the dead letter and the journal
        run_for=timedelta(hours=1),
        retries=2,
    )
