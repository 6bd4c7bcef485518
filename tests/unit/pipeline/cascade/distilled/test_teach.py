from __future__ import annotations

import json

import numpy as np
import pytest

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.cascade.distilled.stage import hand_on
from airflow_provider_llmbeam.pipeline.cascade.distilled.teach import Teacher
from airflow_provider_llmbeam.pipeline.cascade.sample import Sample, SampledPrompt
from airflow_provider_llmbeam.spec import JobSpec

DRAWS = 200


def curve_of(agreement: str | dict[str, object]) -> float:
    """Returns how many answers on a scale agree with vectors that are one off as often as not."""
    spec = JobSpec.parse(
        {
            "name": "stars",
            "source": {"uri": "rows.jsonl", "key": ["id"]},
            "prompt": {
                "template": "{{ row.text }}",
                "output_schema": {"type": "integer", "minimum": 1, "maximum": 5},
            },
            "model": "gemini-2.5-flash",
            "cascade": {
                "stages": [{"type": "distilled", "embedding": {"type": "column", "column": "v"}, "max_labels": 0}],
                "target_agreement": 0.9,
                "sample_rows": DRAWS,
                "agreement": agreement,
            },
            "sink": "out",
            "state_uri": "state",
        }
    )
    source = np.random.default_rng(0)
    vectors, answers, prompts = {}, {}, []
    for number in range(DRAWS):
        stars, name = int(source.integers(1, 6)), f"{number}"
        seen = np.zeros(5)
        seen[min(4, max(0, stars - 1 + int(source.integers(0, 2))))] = 1
        vectors[name], answers[name] = [hand_on(json.dumps(seen.tolist()))], hand_on(json.dumps(stars))
        prompts.append(SampledPrompt(name, (number,), {}, Prompt(""), ()))
    (stage,) = spec.cascade.stages
    teacher = Teacher(
        spec,
        stage,
        Sample(DRAWS, tuple(prompts)),
        lambda prompts: None,
        vectors,
        answers,
        lambda answer: json.loads(answer.text),
    )
    return teacher.teach().curve[-1].agreement


def test_the_learning_curve_compares_as_the_cascade_does():
    assert curve_of("exact") < 0.8
    assert curve_of({"type": "numeric", "absolute_tolerance": 1}) == pytest.approx(1)
