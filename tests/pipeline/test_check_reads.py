"""What the check of a source reads of Cloud Storage."""

from __future__ import annotations

import io

import fastavro
import pytest

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.sources.check_files import check_source

SIZE = 20 * 2**20


@pytest.mark.parametrize("file_format", ["jsonl", "avro"])
def test_the_check_of_a_source_reads_the_beginning_of_a_file_alone(sandbox, google, file_format):
    content = io.BytesIO(b'{"id": "' + bytes(SIZE) + b'"}\n')
    if file_format == "avro":
        content = io.BytesIO()
        schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "bytes"}]}
        fastavro.writer(content, schema, [{"id": bytes(SIZE)}])
    storage.replace(f"gs://rows/a.{file_format}", content.getvalue())
    sandbox.requests.clear()
    check_source(f"gs://rows/a.{file_format}", file_format)
    assert 0 < sum(record.sent_bytes for record in sandbox.requests) < 100_000
