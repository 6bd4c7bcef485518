from __future__ import annotations

import math
import random

import pytest
from llmbeam_sandbox.models.answers import answer_text
from llmbeam_sandbox.models.calls import ModelCall
from llmbeam_sandbox.models.skill import RIGHT, Skill, difficulty

LABELS = {"type": "object", "properties": {"label": {"enum": ["a", "b", "c"]}}, "required": ["label"]}
PROMPTS = [f"Classify this.\nticket {number}" for number in range(4000)]


def call(prompt: str, model: str = "small") -> ModelCall:
    return ModelCall(model=model, prompt=prompt, system="", input_tokens=1, prompt_sha256="", schema=LABELS)


def right(prompt: str) -> str:
    return answer_text(prompt.rpartition("\n")[2], model=RIGHT, schema=LABELS).text


def answers(skill: Skill, model: str = "small") -> list[tuple[bool, float]]:
    source = random.Random(1)
    found = [(prompt, skill.answer(call(prompt, model), source)) for prompt in PROMPTS]
    return [(each.text == right(prompt), each.mean_logprob or 0.0) for prompt, each in found]


def auroc(found: list[tuple[bool, float]]) -> float:
    ranked = sorted(found, key=lambda each: each[1])
    ranks = [rank for rank, (is_right, _) in enumerate(ranked, 1) if is_right]
    number = len(ranks)
    return (sum(ranks) - number * (number + 1) / 2) / (number * (len(ranked) - number))


@pytest.mark.parametrize("share", [0.6, 0.85, 1.0])
def test_a_model_is_right_on_its_share_of_the_prompts_and_more_often_on_easy_ones(share: float) -> None:
    found = [is_right for is_right, _ in answers(Skill(right_share=share))]
    assert sum(found) / len(found) == pytest.approx(share, abs=0.03)
    if share < 1:
        hard = [
            is_right
            for prompt, is_right in zip(PROMPTS, found, strict=True)
            if difficulty(prompt.rpartition("\n")[2]) > 0.9
        ]
        assert sum(hard) / len(hard) < share - 0.2


def test_log_probabilities_say_how_often_an_answer_is_right_well_poorly_or_not_at_all() -> None:
    calibrated = answers(Skill(right_share=0.85))
    stated = sum(math.exp(logprob) for _, logprob in calibrated) / len(calibrated)
    assert stated == pytest.approx(0.85, abs=0.03)
    assert auroc(calibrated) > 0.88
    assert 0.55 < auroc(answers(Skill(right_share=0.85, logprobs="poor"))) < 0.75
    assert {logprob for _, logprob in answers(Skill(logprobs="none"))} == {0.0}


def test_a_share_of_the_calls_is_answered_anew() -> None:
    skill, source = Skill(right_share=0.5, varying_share=0.4), random.Random(1)
    fixed = [Skill(right_share=0.5).answer(call(prompt), source).text for prompt in PROMPTS]
    again = [skill.answer(call(prompt), source).text for prompt in PROMPTS]
    changed = sum(one != other for one, other in zip(fixed, again, strict=True)) / len(PROMPTS)
    assert 0.1 < changed < 0.4, "some are drawn anew, and of these some are the same"


@pytest.mark.parametrize("name", ["right_share", "varying_share"])
def test_a_share_above_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"`Skill.{name}` must be within"):
        Skill(**{name: 1.1})  # type: ignore[arg-type]
