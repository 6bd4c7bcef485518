from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import Cascade, ExactAgreement, JobSpec, NumericAgreement

SMALL = {"type": "openai", "name": "small", "base_url": "http://127.0.0.1:1"}
LARGE = {**SMALL, "name": "large"}
PRICE = {"input_usd_per_million_tokens": 1, "output_usd_per_million_tokens": 2}
JOB = {
    "name": "moods",
    "source": {"uri": "rows.jsonl", "key": ["id"]},
    "prompt": {"template": "{{ row.text }}"},
    "model": LARGE,
    "sink": {"uri": "out/"},
    "state_uri": "state/",
}


def job(stage=None, **fields):
    return JobSpec.parse({**JOB, "cascade": {"stages": [{"model": SMALL, **(stage or {})}]}, **fields})


def cascade(**fields):
    return Cascade.parse({"stages": [{"model": SMALL}], **fields})


@pytest.mark.parametrize(("target", "draws"), [(0.9, 500), (0.95, 1000), (0.98, 2400)])
def test_the_default_sample_follows_from_target_and_confidence(target, draws):
    assert cascade(target_agreement=target).draws == draws
    assert cascade(target_agreement=target, confidence=0.99).draws > draws
    assert cascade(target_agreement=target, sample_rows=700).draws == 700


@given(target=st.floats(0.51, 0.995), confidence=st.floats(0.51, 0.999))
def test_the_smallest_sample_is_the_first_whose_half_certifies_the_target(target, confidence):
    half = cascade(target_agreement=target, confidence=confidence).least_draws // 2
    assert target**half <= (1 - confidence) * (1 + 1e-6)
    assert target ** (half - 1) > (1 - confidence) * (1 - 1e-6)
    assert cascade(target_agreement=target, confidence=confidence).draws >= 2 * half
    with pytest.raises(JobSpecError, match=f"must be at least {2 * half:,}:"):
        cascade(target_agreement=target, confidence=confidence, sample_rows=2 * half - 1)


def test_fourteen_faultless_draws_certify_a_class():
    assert math.ceil(math.log(0.05) / math.log(cascade().class_agreement)) == 14


def test_one_comparison_is_that_of_the_whole_answer():
    assert cascade(agreement="exact").agreement == cascade().agreement == {"*": ExactAgreement()}
    assert cascade(agreement={"type": "numeric"}).agreement == {"*": NumericAgreement()}
    assert cascade(agreement=ExactAgreement()).agreement == {"*": ExactAgreement()}
    assert cascade(agreement={"type": {"type": "exact"}}).agreement == {"type": ExactAgreement()}
    with pytest.raises(JobSpecError, match="must have a comparison"):
        cascade(agreement={})
    with pytest.raises(JobSpecError, match=r"lacks `\{\{ row\.expected \}\}`"):
        cascade(agreement={"type": "judge", "rubric": "{{ row.answer }}", "model": SMALL})


def test_a_stage_is_the_job_with_its_own_parts_the_budget_of_the_job_and_no_other_price():
    spec = job({"limits": {"requests_per_minute": 9, "price": PRICE}}, limits={"budget_usd": 5, "price": PRICE})
    stage = spec.cascade.stage_job(spec, 0)
    assert (stage.model.name, stage.cascade, stage.prompt) == ("small", None, spec.prompt)
    assert (stage.limits.requests_per_minute, stage.limits.budget_usd) == (9, 5)
    assert stage.generation.logprobs
    assert not spec.generation.logprobs
    plain = job(limits={"price": PRICE})
    assert plain.cascade.stage_job(plain, 0).limits.price is None
    assert (
        job(generation={"stream": True}).cascade.stage_job(job(generation={"stream": True}), 0).generation.stream
        is False
    )
    assert not plain.cascade.stage_job(job({"score": "repeats"}), 0).generation.stream


def test_a_stage_has_another_fingerprint_than_model():
    spec = job({"score": "repeats"})
    stage = spec.cascade.stage_job(spec, 0)
    assert stage.fingerprinter()("a", None) != spec.fingerprinter()("a", None)


def test_faults_of_a_stage_are_found_in_it():
    with pytest.raises(JobSpecError, match=r"`cascade\.stages\.0\.limits\.price`: this field is needed with"):
        job(limits={"budget_usd": 5, "price": PRICE})
    with pytest.raises(JobSpecError, match=r"`cascade\.stages\.0\.generation\.thinking_level`"):
        job({"generation": {"thinking_level": "low"}})
    with pytest.raises(
        JobSpecError, match=r"`cascade\.stages\.0\.prompt\.output_schema`: must be that of the job"
    ):
        job(
            {
                "prompt": {
                    "template": "{{ row.text }}",
                    "output_schema": {"type": "object", "properties": {"a": True}},
                }
            }
        )


def test_the_models_of_a_job_are_those_of_its_stages_too():
    assert [model.name for model in job().models] == ["large", "small"]
    assert JobSpec.from_json(job().model_dump_json()) == job()
