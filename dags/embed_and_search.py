"""Embed texts and search them by meaning: vectors in Milvus, and the question as one more vector.

**Need:** the extra `milvus`, and a CSV of notes. `uri` may be a file, for one machine, or the address of a server.

    $ cat /tmp/llmbeam/notes.csv
    note_id,text
    1,The bike has a flat tyre.
    2,Dinner at eight.
    $ airflow dags test embed_and_search --conf '{"question": "What is broken?"}'

**Result:** the collection `notes`, one entity per `note_id`, and the nearest notes as XCom of `search`:

    [{"text": "The bike has a flat tyre.", "similarity": …}, {"text": "Dinner at eight.", "similarity": …}]

`embed_query` asks the model of the notes with the key of the same connection, for a vector of the same length, and
with the task type of a question. In the sandbox vectors mean nothing, so what is found there is arbitrary. If
`prompt` begins with `passage: `, as for E5, begin a question with `query: `.

With PostgreSQL and pgvector the sink is `{"table": "notes", "vector_type": "vector", "passthrough": ["text"], …}`,
the search `SELECT text FROM notes ORDER BY answer <=> %s::vector LIMIT 5` with `str(asked)`, and its index
`CREATE INDEX ON notes USING hnsw (answer vector_cosine_ops)`.
"""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")
MODEL = "gemini-embedding-001"
EMBEDDING = {"dimensions": 768, "task_type": "RETRIEVAL_DOCUMENT"}

with DAG("embed_and_search", schedule=None, params={"question": "What is broken?"}, doc_md=__doc__) as dag:
    embed = RunInferenceOperator(
        task_id="embed",
        source={"uri": f"{DATA}/notes.csv", "key": "note_id"},
        prompt="{{ row.text }}",
        model=MODEL,
        embedding=EMBEDDING,
        limits={"requests_per_minute": 600},
        sink={"uri": f"{DATA}/notes.db", "collection": "notes", "passthrough": ["text"]},
        state_uri=f"{DATA}/state",
        retries=2,
    )

    @task
    def search(params: dict[str, Any]) -> list[dict[str, Any]]:
        from pymilvus import MilvusClient

        from airflow_provider_llmbeam.integrations.search import embed_query

        asked = embed_query(params["question"], model=MODEL, embedding=EMBEDDING)
        milvus = MilvusClient(f"{DATA}/notes.db")
        milvus.load_collection("notes")
        (found,) = milvus.search("notes", [asked], limit=5, output_fields=["text"])
        return [{"text": each["entity"]["text"], "similarity": each["distance"]} for each in found]

    embed >> search()
