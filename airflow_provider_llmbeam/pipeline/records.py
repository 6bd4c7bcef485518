"""What an output row and a dead letter hold."""

from __future__ import annotations

import json

from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow, Row

_to_json = json.JSONEncoder(ensure_ascii=False, default=str).encode


def answer_record(answered: AnsweredRow, key: tuple[str, ...]) -> Row:
    """The output row: the key, the answer, and what an audit asks for."""
    completion = answered.completion
    return {
        **{column: answered.row[column] for column in key},
        "answer": completion.text if completion.parsed is None else completion.parsed,
        "origin": answered.origin,
        "model": completion.model,
        "fingerprint": answered.fingerprint,
        "finish_reason": completion.finish_reason,
        "input_tokens": completion.input_tokens,
        "output_tokens": completion.output_tokens,
        "attempts": completion.attempts,
        "latency_seconds": round(completion.latency_seconds, 4),
    }


def dead_record(dead: FailedRow) -> Row:
    """The row as it came in, so that a source can read it again, and why it failed."""
    failure = dead.failure
    return {
        **dead.row,
        "llmbeam_error": {
            "kind": failure.kind,
            "message": failure.message,
            "http_status": failure.http_status,
            "attempts": failure.attempts,
        },
    }


def encode_record(record: Row) -> bytes:
    """One JSON line; what JSON has no type for (dates, decimals) becomes text."""
    return _to_json(record).encode("utf-8", "surrogatepass") + b"\n"
