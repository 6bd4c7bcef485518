"""Embed texts and search them by meaning: vectors in Milvus, and the question as one more vector.

**Need:** the extra `milvus`, and a CSV of notes. `uri` may be a file, for one machine, or the address of a server.

    $ cat /tmp/llmbeam/notes.csv
    note_id,text
    1,The bike has a flat tyre.
    2,Dinner at eight.
    $ airflow dags test embed_and_search --conf '{"question": "What is broken?"}'

**Result:** the collection `notes`, one entity per `note_id`, and the nearest notes as XCom of `search`:

    [{"note_id": "1", "similarity": …}, {"note_id": "2", "similarity": …}]

The question needs a key in `GOOGLE_API_KEY`, the model and the length of the notes, and its own task type. A
collection has the key of each row; its text is in the source. For vectors beside texts in one table, use a sink
of type `bigquery` or `postgres`.
"""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")
MODEL, DIMENSIONS = "gemini-embedding-001", 768

with DAG("embed_and_search", schedule=None, params={"question": "What is broken?"}, doc_md=__doc__) as dag:
    embed = RunInferenceOperator(
        task_id="embed",
        source={"uri": f"{DATA}/notes.csv", "key": "note_id"},
        prompt="{{ row.text }}",
        model=MODEL,
        embedding={"dimensions": DIMENSIONS, "task_type": "RETRIEVAL_DOCUMENT"},
        limits={"requests_per_minute": 600},
        sink={"uri": f"{DATA}/notes.db", "collection": "notes"},
        state_uri=f"{DATA}/state",
        retries=2,
    )

    @task
    def search(params: dict[str, Any]) -> list[dict[str, Any]]:
        from google import genai
        from pymilvus import MilvusClient

        config = {"task_type": "RETRIEVAL_QUERY", "output_dimensionality": DIMENSIONS}
        with genai.Client() as gemini:  # with the key in GOOGLE_API_KEY
            asked = gemini.models.embed_content(model=MODEL, contents=params["question"], config=config)
        milvus = MilvusClient(f"{DATA}/notes.db")
        milvus.load_collection("notes")
        (found,) = milvus.search("notes", [asked.embeddings[0].values], limit=5, output_fields=["note_id"])
        return [{"note_id": each["entity"]["note_id"], "similarity": each["distance"]} for each in found]

    embed >> search()
