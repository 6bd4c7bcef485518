"""Audit records: who sent which row to which model, and what it cost."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Self

import orjson

from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.pipeline.audit.account import account_of
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.privacy.vault import VAULT
from airflow_provider_llmbeam.pipeline.records import encode_key, encode_record
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import NANO

#: Version of the fields of a record. A field that is added does not change it.
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """Who sends the requests of a job; the same in all its records.

    Attributes:
        job: Name of the job.
        deployment: Airflow deployment; `None` without Airflow, as the four fields that follow.
        dag_id: Id of the Dag.
        task_id: Id of the task.
        run_id: Id of the Dag run.
        map_index: Index of a mapped task; -1 for others.
        account: Service account of the process that sends; `None` if it is not known without a request.
        model_type: Type of the model.
        requested_model: Name of the model in the spec.
    """

    job: str
    deployment: str | None
    dag_id: str | None
    task_id: str | None
    run_id: str | None
    map_index: int | None
    account: str | None
    model_type: str
    requested_model: str

    @classmethod
    def of(cls, spec: JobSpec) -> Self:
        """Returns the requester of a job, which this process launches."""
        run = spec.airflow_run
        return cls(
            job=spec.name,
            deployment=spec.deployment or None,
            dag_id=None if run is None else run.dag_id,
            task_id=None if run is None else run.task_id,
            run_id=None if run is None else run.run_id,
            map_index=None if run is None else run.map_index,
            account=account_of(spec),
            model_type=spec.model.type,
            requested_model=spec.model.name,
        )


class Texts(NamedTuple):
    """The texts of a record; `None` for those that are not included."""

    system: str | None = None
    prompt: str | None = None
    answer: str | None = None


@dataclass(slots=True, kw_only=True)  # a frozen one takes 4 us more to make
class AuditRecord:
    """What was sent of some rows, and what came back; without their text, unless the spec asks for it.

    Attributes:
        schema_version: Version of these fields.
        record_id: Identity of the record.
        at: Time of the outcome, UTC.
        requester: Who has sent it; its fields are fields of the record.
        row_key_hashes: SHA-256 of the key of each row that gets the answer, see `key_hash`. Empty for a prompt of
            no row of the source, e.g. that of a judge.
        fingerprint: Fingerprint of the prompt.
        origin: `online`, or `batch` for batch inference.
        outcome: `answered`, or the kind of failure.
        category: Why a blocked text was blocked, as the server says; `None` for other outcomes.
        http_status: HTTP status of the last response to a failed request.
        model: Version of the model, as reported by the server; `None` for a failure.
        service_tier: Tier that served it.
        input_tokens: Billed input tokens.
        cached_tokens: Billed input tokens from the provider's cache, which `input_tokens` includes.
        output_tokens: Billed output tokens.
        cost_usd: Cost of these tokens in US dollars; `None` if no price is known.
        attempts: Number of requests sent, without 429s; 0 if they are counted with another prompt of the request.
        rejections: Number of 429s received.
        masked: Kinds of the values that were masked in the prompt, each `{"kind": …, "count": …}`; `None` for a
            job that masks nothing, and for a prompt of no row of the source.
        system: Text of the system prompt, if texts are included.
        prompt: Text of the prompt, if texts are included.
        answer: Text of the answer, if texts are included.
    """

    schema_version: int = SCHEMA_VERSION
    record_id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    at: str
    requester: Requester
    row_key_hashes: tuple[str, ...]
    fingerprint: str
    origin: Literal["online", "batch"]
    outcome: str
    category: str | None
    http_status: int | None
    model: str | None
    service_tier: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_usd: float | None
    attempts: int
    rejections: int
    masked: list[dict[str, Any]] | None = None
    system: str | None = None
    prompt: str | None = None
    answer: str | None = None

    @classmethod
    def of(
        cls,
        outcome: Outcome,
        requester: Requester,
        fingerprint: str,
        row_key_hashes: tuple[str, ...],
        origin: Literal["online", "batch"],
        masked: Mapping[str, int] | None,
        texts: Texts,
        now: float,
    ) -> Self:
        """Returns the record of an outcome.

        Args:
            outcome: The outcome.
            requester: Who has sent the prompt.
            fingerprint: Fingerprint of the prompt.
            row_key_hashes: See `AuditRecord`.
            origin: See `AuditRecord`.
            masked: Number of masked values by kind, see `AuditRecord`.
            texts: The texts to include.
            now: Unix time.
        """
        cost = outcome.cost_nano_usd
        return cls(
            at=datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
            requester=requester,
            row_key_hashes=row_key_hashes,
            fingerprint=fingerprint,
            origin=origin,
            outcome="answered" if isinstance(outcome, Completion) else outcome.kind,
            category=None if isinstance(outcome, Completion) else outcome.category or None,
            http_status=None if isinstance(outcome, Completion) else outcome.http_status,
            model=outcome.model if isinstance(outcome, Completion) else None,
            service_tier=outcome.service_tier,
            input_tokens=outcome.input_tokens,
            cached_tokens=outcome.cached_tokens,
            output_tokens=outcome.output_tokens,
            cost_usd=None if cost is None else cost / NANO,
            attempts=outcome.attempts,
            rejections=outcome.rejections,
            masked=None if masked is None else [{"kind": kind, "count": masked[kind]} for kind in masked],
            system=texts.system,
            prompt=texts.prompt,
            answer=texts.answer,
        )

    def line(self) -> bytes:
        """Encodes the record as one line of JSON; without texts and masked kinds that it does not have."""
        fields: dict[str, Any] = dict(zip(_REQUESTER_FIELDS, _requester_values(self.requester), strict=True))
        fields.update(zip(_FIELDS, _values(self), strict=True))
        for name in ("masked", *Texts._fields):
            if fields[name] is None:
                del fields[name]
        try:
            return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # a text with half of a surrogate pair
            return encode_record(fields)


_FIELDS = tuple(field.name for field in dataclasses.fields(AuditRecord) if field.name != "requester")
_REQUESTER_FIELDS = tuple(field.name for field in dataclasses.fields(Requester))
_values, _requester_values = attrgetter(*_FIELDS), attrgetter(*_REQUESTER_FIELDS)


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
