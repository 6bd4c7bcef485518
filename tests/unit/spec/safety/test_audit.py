from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_llmbeam.spec import BigQueryAudit, FilesAudit, JobSpec

JOB: dict[str, Any] = {
    "name": "job",
    "source": {"uri": "rows.jsonl", "key": ["id"]},
    "prompt": {"template": "{{ row.text }}"},
    "model": {"type": "echo"},
    "sink": {"uri": "gs://b/out"},
    "state_uri": "gs://b/state",
}
DATAFLOW = {
    "runner": {"type": "dataflow", "project": "my-project", "location": "us-central1"},
    "source": {"uri": "gs://b/rows.jsonl", "key": ["id"]},
}


def with_audit(audit: Any, **changes: Any) -> dict[str, Any]:
    return JOB | {"safety": {"audit": audit}} | changes


def problem(audit: Any, **changes: Any) -> str:
    (found,) = JobSpec.problems(with_audit(audit, **changes))
    return str(found)


def test_the_field_names_the_kind_of_audit() -> None:
    files = JobSpec.parse(with_audit({"uri": "gs://audit/llm"}))
    assert files.safety.audit == FilesAudit(uri="gs://audit/llm/")
    assert files.paths.audit_uri == "gs://audit/llm/"
    table = JobSpec.parse(with_audit({"table": "p:d.t"}))
    assert table.safety.audit == BigQueryAudit(table="p.d.t")
    assert table.paths.audit_uri == "gs://b/state/job/audit/"
    assert JobSpec.parse(JOB).paths.audit_uri is None


def test_the_directory_of_an_audit_is_private() -> None:
    assert "gs://audit/llm/" in JobSpec.parse(with_audit({"uri": "gs://audit/llm"})).paths.private_uris


@pytest.mark.parametrize(
    ("audit", "message"),
    [
        ({"uri": "gs://b/*"}, "`safety.audit.uri`: must be one directory"),
        ({"uri": "https://user:pass@host/"}, "`safety.audit.uri`: must not hold a user or a password"),
        ({"table": "t"}, "`safety.audit.table`: must be `project.dataset.table`"),
        ({"uri": "a", "tables": "b"}, "`safety.audit.tables`: there is no such field"),
        ({"type": "sql"}, "`safety.audit.type`: "),
        (5, "`safety.audit`: "),
    ],
)
def test_a_mistake_names_its_field(audit: Any, message: str) -> None:
    assert problem(audit).startswith(message)


def test_workers_of_dataflow_cannot_write_an_audit_on_this_machine() -> None:
    assert "`safety.audit.uri` 'audit/' of this machine" in problem({"uri": "audit"}, **DATAFLOW)
    assert JobSpec.problems(with_audit({"uri": "gs://audit/llm"}, **DATAFLOW)) == ()
