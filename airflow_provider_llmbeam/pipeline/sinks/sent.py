"""Which answers of a run were sent already: a queue keeps every message, so they must not be sent again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.records import encode_record

_BITS = 256


def digest_of(address: str, records: Iterable[Row]) -> str:
    """Returns a digest of records in any order, and of where they are sent.

    `origin` is left out: it changes for every row that a second run takes from the journal.
    """
    total = 0
    for record in records:
        line = encode_record({name: value for name, value in record.items() if name != "origin"})
        total = (total + int.from_bytes(hashlib.sha256(line).digest())) % 2**_BITS
    return hashlib.sha256(f"{address}\0{total:064x}".encode()).hexdigest()


def were_sent(uri: str, digest: str) -> bool:
    """Returns whether the answers with a digest are those that were sent last."""
    if not storage.exists(uri):
        return False
    try:
        return bool(json.loads(storage.read(uri)) == {"digest": digest})
    except ValueError:  # they are sent again, which loses none
        return False


def remember(uri: str, digest: str) -> None:
    """Records that the answers with a digest were sent."""
    storage.replace(uri, json.dumps({"digest": digest}).encode())
