from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_llmbeam.pipeline.privacy.masker import Masker
from airflow_provider_llmbeam.spec import JobSpec

#: A pattern instead of presidio's: a property draws many values.
DIGITS = {"type": "custom", "name": "NUMBER", "pattern": r"\d{6}"}


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "the secret of the tests")


def masker(template: str = "Say: {{ row.text }}", sink: str = "out", **privacy: Any) -> Masker:
    spec = JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": "rows.jsonl", "key": "id"},
            "prompt": {"template": template},
            "model": {"type": "echo"},
            "sink": {"uri": sink},
            "safety": {"privacy": {"detectors": [DIGITS, "patterns"], **privacy}},
        }
    )
    assert spec.safety.privacy is not None
    return Masker(spec, spec.safety.privacy)


@pytest.fixture
def make_masker():
    return masker
