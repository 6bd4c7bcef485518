"""Kafka messages in batches: labels them every five minutes, and sends the labels to another topic.

Each run takes the messages that have come since the last one. The connection `kafka_default` of the type Apache
Kafka names the brokers, and the topics `tickets` and `ticket-labels` exist. A message is a JSON object with a
`text`.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")

with DAG(
    "queue_batches",
    schedule=timedelta(minutes=5),
    start_date=datetime(2026, 1, 1),
    catchup=False,  # one run takes all that has come
    max_active_runs=1,  # two runs at once would take the same messages, and the second one would fail
    doc_md=__doc__,
) as dag:
    RunInferenceOperator(
        task_id="label",
        source={"type": "kafka", "topic": "tickets", "conn_id": "kafka_default"},
        prompt={
            "template": "Which team should answer this ticket?\n\n{{ row.text }}",
            "output_schema": {
                "type": "object",
                "properties": {"team": {"type": "string", "enum": ["billing", "technical", "other"]}},
                "required": ["team"],
            },
        },
        model="gemini-3.5-flash-lite",
        limits={"requests_per_minute": 600},
        sink={
            "type": "kafka",
            "topic": "ticket-labels",
            "conn_id": "kafka_default",
            "passthrough": ["kafka_key"],
        },
        state_uri=f"{DATA}/state",  # the position in the topic is kept here, too
        cache={"scope": "tickets"},  # what a run has paid for before it failed serves the next one as well
        retries=2,
    )
