"""Audit records: who sent which row to which model, and what it cost. docs/audit.md describes the fields."""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson

from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.privacy.vault import VAULT
from airflow_provider_llmbeam.pipeline.records import encode_key, encode_record
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from airflow_provider_llmbeam.spec.runner import DataflowRunner, workers_have_keys

#: Version of the fields of a record. A field that is added does not change it.
SCHEMA_VERSION = 1

_IMPERSONATED = re.compile(r"/serviceAccounts/([^:/]+):")


def requester_of(spec: JobSpec) -> dict[str, Any]:
    """Returns the fields that all records of a job share; called by the process that launches it."""
    run = spec.airflow_run
    return {
        "job": spec.name,
        "deployment": spec.deployment or None,
        "dag_id": None if run is None else run.dag_id,
        "task_id": None if run is None else run.task_id,
        "run_id": None if run is None else run.run_id,
        "map_index": None if run is None else run.map_index,
        "account": account_of(spec),
        "model_type": spec.model.type,
        "requested_model": spec.model.name,
    }


def account_of(spec: JobSpec) -> str | None:
    """Returns the service account that sends the requests of a job, as far as it is known without a request.

    It is that of the Dataflow workers, or the one that the file of the application default credentials names.
    `None` for a user, for the account of a machine, and for an API key, whose owner only Google knows.
    """
    if isinstance(spec.runner, DataflowRunner):
        return spec.runner.service_account
    if workers_have_keys(spec.runner):
        return None
    if not (path := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")):
        return None
    try:
        found = json.loads(Path(path).read_bytes())
        impersonated = _IMPERSONATED.search(str(found.get("service_account_impersonation_url", "")))
        account = impersonated[1] if impersonated else found.get("client_email")
    except (OSError, ValueError, AttributeError):
        return None
    return account if isinstance(account, str) else None


def encode_outcome(
    outcome: Outcome,
    requester: Mapping[str, Any],
    fingerprint: str,
    row_key_hashes: Iterable[str],
    origin: Literal["online", "batch"],
    masked: Mapping[str, int] | None,
    texts: Mapping[str, str | None],
    now: float,
) -> bytes:
    """Returns the record of an outcome as one line of JSON; without the text of its row, unless it is given.

    Args:
        outcome: The outcome.
        requester: See `requester_of`.
        fingerprint: Fingerprint of the prompt.
        row_key_hashes: `key_hash` of each row that gets the answer; none for a prompt of no row of the source.
        origin: Whether it was sent online or by batch inference.
        masked: Number of masked values by kind; `None` for a job that masks nothing, and without a row.
        texts: Texts to include, by the name of their field.
        now: Unix time.
    """
    failure = None if isinstance(outcome, Completion) else outcome
    fields = {
        **requester,
        "schema_version": SCHEMA_VERSION,
        "record_id": uuid.uuid4().hex,
        "at": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        "row_key_hashes": tuple(row_key_hashes),
        "fingerprint": fingerprint,
        "origin": origin,
        "outcome": "answered" if failure is None else failure.kind,
        "category": None if failure is None else failure.category or None,
        "http_status": None if failure is None else failure.http_status,
        "model": outcome.model if isinstance(outcome, Completion) else None,
        "service_tier": outcome.service_tier,
        "input_tokens": outcome.tokens.input,
        "cached_tokens": outcome.tokens.cached,
        "output_tokens": outcome.tokens.output,
        "cost_usd": None if outcome.cost_nano_usd is None else outcome.cost_nano_usd / NANO,
        "attempts": outcome.attempts,
        "rejections": outcome.rejections,
        **({} if masked is None else {"masked": [{"kind": kind, "count": masked[kind]} for kind in masked]}),
        **{name: text for name, text in texts.items() if text is not None},
    }
    try:
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a text with half of a surrogate pair
        return encode_record(fields)


def key_hash(row: Row, key: tuple[str, ...]) -> str:
    """Returns the SHA-256 of the key of a row as JSON, e.g. of `{"id": 17}`, in hexadecimal digits.

    It is a pseudonym: whoever knows the key finds the records of its row.
    """
    return hashlib.sha256(encode_key(row, key).rstrip(b"\n")).hexdigest()


def audited_row(row: Row, key: tuple[str, ...]) -> Row:
    """Returns what a record needs of a row: its key, and what was masked in it."""
    return {column: row[column] for column in (*key, VAULT) if column in row}


def key_hashes(rows: Iterable[Row], key: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the hash of the key of each row."""
    return tuple(key_hash(row, key) for row in rows)
