"""Which answers of a run were sent already: a queue keeps every message, so they must not be sent again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.records import encode_record, read_records

_BITS = 256

#: The position of an answer in the staged file, and the answer.
Unsent = tuple[int, Row]


def digest_of(address: str, records: Iterable[Row]) -> str:
    """Returns a digest of records in any order, and of where they are sent."""
    total = sum(int(_digest(record), 16) for record in records) % 2**_BITS
    return hashlib.sha256(f"{address}\0{total:064x}".encode()).hexdigest()


def find_unsent(uri: str, digest: str, staged: Mapping[int, str]) -> Iterator[Unsent]:
    """Yields the staged answers that were not sent: if the last ones were these, only what was refused then."""
    try:
        found = json.loads(storage.read_if_exists(uri) or b"null")
    except ValueError:  # they are sent again, which loses none
        found = None
    was_sent = isinstance(found, dict) and found.get("digest") == digest
    refused = {*found.get("refused", ())} if was_sent else ()
    for number, record in enumerate(read_records(staged)):
        if not was_sent or (refused and _digest(record) in refused):
            yield number, record


def remember(uri: str, digest: str, staged: Mapping[int, str], refused: Collection[int]) -> None:
    """Records that the answers with a digest were sent, all but the refused ones."""
    left = [_digest(record) for number, record in enumerate(read_records(staged)) if number in refused]
    storage.replace(uri, json.dumps({"digest": digest, **({"refused": left} if left else {})}).encode())


def _digest(record: Row) -> str:
    """Returns the digest of a record without its origin, which changes for a row that comes from the journal."""
    line = encode_record({name: value for name, value in record.items() if name != "llmbeam_origin"})
    return hashlib.sha256(line).hexdigest()
