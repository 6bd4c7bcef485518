"""A classifier that has learned from `model` answers first, for the price of an embedding or of nothing."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from llmbeam_sandbox import Sandbox
from llmbeam_sandbox.models.answers import answer_text
from llmbeam_sandbox.models.embedding.base import Separation
from llmbeam_sandbox.models.skill import RIGHT

from airflow_provider_llmbeam.spec import JobSpec
from tests.pipeline.conftest import Job
from tests.pipeline.test_cascade import ROWS, SCHEMA, agreement, by_model, make, models, paid, stage

VECTORS = {"near": Separation(schema=SCHEMA, degree=0.8), "far": Separation(schema=SCHEMA, degree=0.0)}


@pytest.fixture(scope="module")
def separating():
    with Sandbox(models=models(separations=VECTORS)) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(separating):
    separating.reset()
    return separating


def distilled(sandbox: Sandbox, name: str = "near", **fields: Any) -> dict[str, Any]:
    model = {"type": "openai", "name": name, "base_url": sandbox.openai_url}
    price = {"input_usd_per_million_tokens": 0.02, "output_usd_per_million_tokens": 0.0}
    return {
        "type": "distilled",
        "embedding": {"model": model, "dimensions": 16},
        "prompt": "{{ row.text }}",
        "limits": {"price": price},
        "max_labels": 0,
        **fields,
    }


def label(text: str) -> str:
    found: str = json.loads(answer_text(text, model=RIGHT, schema=SCHEMA).text)["label"]
    return found


def vector(text: str, noise: float = 0.3) -> list[float]:
    source = random.Random(text)
    return [(each == label(text)) + noise * source.gauss(0, 1) for each in "ab"]


@pytest.mark.promise(4)
def test_a_classifier_on_embeddings_keeps_rows_and_each_vector_is_paid_once(tmp_path, sandbox):
    job = make(tmp_path, sandbox, stages=[distilled(sandbox)])
    ended = job.run()
    report = ended.report["cascade"]
    assert [each["name"] for each in report["stages"]] == ["distilled near", "large"]
    assert agreement(ended.answers) >= 0.85
    assert report["stages"][0]["answered"] > 300
    assert by_model(sandbox)["large"] < 250
    assert set(paid(sandbox).values()) == {1}, "nothing is paid twice"
    facts = report["stages"][0]["distilled"]
    assert facts["learning_curve"][-1]["agreement"] > 0.8
    assert sum(each["draws"] for each in facts["confusion"]) == 100, "the draws that test"
    sent = len(sandbox.requests)
    again = job.run()
    assert len(sandbox.requests) == sent
    assert {row["id"]: row["answer"] for row in again.answers} == {row["id"]: row["answer"] for row in ended.answers}
