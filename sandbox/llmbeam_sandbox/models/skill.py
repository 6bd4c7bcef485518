"""Models of different skill: on how many prompts one is right, how sure it says it is, and how often it varies."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal

from llmbeam_sandbox.models.answers import Answer, answer_text
from llmbeam_sandbox.models.calls import ModelCall

#: Name of the model whose answers are the right ones.
RIGHT = "right"
#: Share of a poor log-probability that follows the chance to be right.
_POOR_SHARE = 0.3
#: Number of wrong answers that are tried; a schema may allow one answer alone.
_TRIES = 20


@dataclass(frozen=True, kw_only=True)
class Skill:
    """How well a model answers.

    The right answer to a prompt is the same for all models. A prompt of difficulty d, from 0 to 1, is answered
    right with the probability 1 - d ** (share / (1 - share)), whose mean over all difficulties is `right_share`.

    Attributes:
        right_share: Share of all prompts that are answered right, within (0, 1].
        logprobs: Whether the mean log-probability of an answer is that of its being right (`calibrated`), follows
            it only loosely (`poor`), or is the same for all answers (`none`).
        varying_share: Share of the calls, drawn at random, whose answer is drawn anew. Others repeat the answer
            to an equal prompt.

    Raises:
        ValueError: A share is out of its range.
    """

    right_share: float = 1.0
    logprobs: Literal["calibrated", "poor", "none"] = "calibrated"
    varying_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.right_share <= 1:
            raise ValueError(f"`Skill.right_share` must be within (0, 1]; got {self.right_share!r}.")
        if not 0 <= self.varying_share <= 1:
            raise ValueError(f"`Skill.varying_share` must be within [0, 1]; got {self.varying_share!r}.")

    def chance(self, prompt: str) -> float:
        """Returns the probability of a right answer to a prompt."""
        if self.right_share == 1:
            return 1.0
        return float(1 - difficulty(prompt) ** (self.right_share / (1 - self.right_share)))

    def answer(self, call: ModelCall, source: random.Random) -> Answer:
        """Answers a call.

        Args:
            call: The call.
            source: Draws which calls vary, and their answers.
        """
        # The last line alone decides, so that a model that is asked in other words has the same right answer.
        asked = call.prompt.rstrip().rpartition("\n")[2]
        varies = self.varying_share > 0 and source.random() < self.varying_share
        drawn = source.random() if varies else uniform(call.model, asked)
        chance = self.chance(asked)
        right = _answer(call, asked, RIGHT)
        answer = (
            right if drawn < chance else _wrong(call, asked, right, int(source.random() * 2**32) if varies else 0)
        )
        return replace(answer, mean_logprob=self._logprob(chance, call.model, asked))

    def _logprob(self, chance: float, model: str, asked: str) -> float | None:
        match self.logprobs:
            case "none":
                return None
            case "poor":
                chance = _POOR_SHARE * chance + (1 - _POOR_SHARE) * uniform("poor", f"{model} {asked}")
        return math.log(max(chance, 1e-6))


def difficulty(prompt: str) -> float:
    """Returns how difficult a prompt is, from 0 to below 1, evenly over all prompts."""
    return uniform("difficulty", prompt)


def uniform(name: str, text: str) -> float:
    """Returns a number from 0 to below 1 that follows from a name and a text."""
    return int.from_bytes(sha256(f"{name}\n{text}".encode()).digest()[:7]) / 2**56


def _answer(call: ModelCall, asked: str, model: str) -> Answer:
    return answer_text(asked, model=model, schema=call.schema, max_output_tokens=call.max_output_tokens)


def _wrong(call: ModelCall, asked: str, right: Answer, seed: float) -> Answer:
    answers = (_answer(call, asked, f"{call.model} {seed} {number}") for number in range(_TRIES))
    return next((answer for answer in answers if _value(answer) != _value(right)), right)


def _value(answer: Answer) -> object:
    try:
        return json.loads(answer.text)
    except ValueError:
        return answer.text
