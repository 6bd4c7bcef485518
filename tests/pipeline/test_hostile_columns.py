"""Whatever the columns of a row hold, also under names that the job itself uses, the other rows are answered."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hostile import examples
from tests.pipeline.conftest import Job

pytestmark = [pytest.mark.promise(1), pytest.mark.slow]

#: What a job without a feature of its own has in a row, or makes of one.
RESERVED = (
    "llmbeam_vault",
    "llmbeam_error",
    "llmbeam_raw",
    "llmbeam_bytes",
    "llmbeam_element",
    "llmbeam_review",
    "llmbeam_unknown",
    "\0moderation_input",
    "llmbeam_moderation_input",
    "ann@example.com",
    "user",
    "sent_at",
    "extra",
)
TEXTS = (
    "",
    "x",
    "vault1:AAAA",
    "<EMAIL_7f3a>",
    "ann@example.com",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2026-01-01",
    "\0",
    "\ud800",
    "1E+999",
    "NaN",
    "4111 1111 1111 1111",
)
TYPES = (
    "bytes",
    "binary_text",
    "date",
    "datetime",
    "datetime UTC",
    "decimal",
    "float",
    "timedelta",
    "uuid",
    "x",
    "",
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(TEXTS),
    st.text(max_size=8),
)
FORMS = st.one_of(
    st.fixed_dictionaries({"values": st.dictionaries(st.sampled_from(TEXTS), SCALARS, max_size=2)}),
    st.fixed_dictionaries(
        {}, optional={"masked": SCALARS, "dropped": SCALARS, "sent": SCALARS, "hashed": SCALARS}
    ),
    st.fixed_dictionaries({"llmbeam_bytes": SCALARS}),
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["truncated", ["x"], {}, 5])},
        optional={"types": st.dictionaries(st.sampled_from([*RESERVED, "text"]), st.sampled_from(TYPES))},
    ),
)
VALUES = st.recursive(
    SCALARS | FORMS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*RESERVED, *TEXTS]), inner, max_size=2)
    ),
    max_leaves=4,
)
ROWS = st.lists(st.dictionaries(st.sampled_from(RESERVED), VALUES, max_size=5), min_size=12, max_size=12)

#: More than of strangers: a job none of whose rows, or most, can be sent is a mistake, and ends.
GOOD = 13
PRIVACY = {"key_env": "LLMBEAM_PRIVACY_KEY"}
CONVERSATION = {"key": "user", "order_by": "sent_at"}
PASSTHROUGH = ["llmbeam_vault", "llmbeam_error", "extra", "sent_at"]
FEATURES: dict[str, dict[str, Any]] = {
    "audit": {"safety": {"audit": {"uri": "audit"}}},
    "privacy": {"safety": {"privacy": PRIVACY}},
    "privacy of a column, audit": {
        "safety": {"privacy": {**PRIVACY, "columns": ["text"]}, "audit": {"uri": "audit"}}
    },
    "conversation": {"conversation": CONVERSATION},
    "conversation, audit, privacy": {
        "conversation": {"key": "user"},
        "safety": {"audit": {"uri": "audit"}, "privacy": {**PRIVACY, "columns": ["text", "extra"]}},
    },
    "whole rows": {"prompt": {"template": "{{ row }}"}, "safety": {"privacy": PRIVACY, "audit": {"uri": "audit"}}},
    "failed kinds": {"source": {"failed_kinds": ["truncated"]}},
    "files": {"sink": {"passthrough": PASSTHROUGH}},
    "Parquet": {"sink": {"passthrough": PASSTHROUGH, "format": "parquet"}},
    "Parquet, privacy": {
        "sink": {"passthrough": PASSTHROUGH, "format": "parquet"},
        "safety": {"privacy": {**PRIVACY, "action": "hash"}},
    },
}


def run(directory: Path, rows: list[Mapping[str, Any]], changes: Mapping[str, Any], model: Any = None) -> Any:
    """Runs a job with strangers' rows among others, and returns how it has ended."""
    job = Job(directory, model or {"type": "echo"})
    good = [
        {"id": -1 - number, "text": f"good {number}", "user": "u", "sent_at": number} for number in range(GOOD)
    ]
    # A column that the job names is in some row.
    kind = {
        **dict.fromkeys(PASSTHROUGH[:3]),
        "llmbeam_error": {"kind": "truncated"} if "source" in changes else None,
    }
    strange = [{"text": "t", **row, "id": number} for number, row in enumerate(rows)]
    job.write([json.dumps(row) for row in [*({**kind, **row} for row in good), *strange]])
    safety = {name: dict(part) for name, part in changes.get("safety", {}).items()}
    if "audit" in safety:
        safety["audit"]["uri"] = str(directory / "audit")
    spec = {**changes, "safety": safety, "state_uri": str(directory / "state")}
    for name in ("source", "sink"):
        spec[name] = {**job.spec[name], **changes.get(name, {})}
    ended = job.run(**spec)
    assert {*range(-GOOD, 0)} <= {row["id"] for row in ended.answers}
    if "source" not in changes:
        ids = Counter(row["id"] for row in [*ended.answers, *ended.dead_letter])
        assert ids == Counter(range(-GOOD, len(rows)))
    return ended


@pytest.mark.fuzz
@pytest.mark.parametrize("changes", FEATURES.values(), ids=FEATURES.keys())
@settings(examples(0.03), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rows=ROWS)
def test_no_value_of_a_row_keeps_the_others_from_being_answered(tmp_path, monkeypatch, changes, rows):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "the secret of the tests")
    run(Path(tempfile.mkdtemp(dir=tmp_path)), rows, changes)


@pytest.mark.fuzz
@pytest.mark.parametrize("action", ["fail", "flag"])
@settings(examples(0.02), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rows=ROWS)
def test_no_value_of_a_row_keeps_the_others_from_being_judged(tmp_path, monkeypatch, sandbox, action, rows):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "the secret of the tests")
    guard = {"type": "openai", "name": "meta-llama/Llama-Guard-3-8B", "base_url": sandbox.openai_url}
    moderation = {"model": guard, "action": action}
    changes = {"safety": {"moderation": moderation, "privacy": PRIVACY, "audit": {"uri": "audit"}}}
    ended = run(Path(tempfile.mkdtemp(dir=tmp_path)), rows, changes)
    assert {each.get("llmbeam_moderation_input") for each in ended.answers} == {None}, "no row has flagged itself"
