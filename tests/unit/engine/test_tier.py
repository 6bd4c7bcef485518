"""The engine with a flex tier, on a clock that jumps."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import pytest

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.pacing.flex import FlexCapacity
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.tier import FlexTier
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.spec import Price
from tests.unit.engine.test_engine import FakeBackend, Recorder, Run, engine_of, many, now

HOUR = 3600.0


def shed() -> RequestError:
    return RequestError("server_error", "overloaded", http_status=503)


class Flex(FakeBackend):
    """Sheds a share of the requests until a time of the loop, and answers the others after a minute."""

    def __init__(self, shed_ratio: float, until: float, seed: int = 1) -> None:
        super().__init__(seconds=60.0)
        self._shed_ratio = shed_ratio
        self._until = until
        self._random = random.Random(seed)
        self.sheds = 0

    async def complete(self, prompt: Prompt) -> Reply:
        if now() < self._until and self._random.random() < self._shed_ratio:
            self.sheds += 1
            await asyncio.sleep(0.2)
            raise shed()
        reply = await super().complete(prompt)
        return Reply(
            text=reply.text,
            finish_reason="stop",
            tokens=Tokens(reply.tokens.input, reply.tokens.output),
            model=reply.model,
            service_tier="flex",
        )


async def answered(
    rows: int,
    flex: FakeBackend,
    until_seconds: float = HOUR,
    *,
    has_fallback: bool = True,
    timeout_seconds: float = 10.0,
    **changes: Any,
) -> tuple[list[Any], FakeBackend, float]:
    """Answers rows with 300 standard requests a minute; returns outcomes, the standard client and the seconds."""
    begin, standard = now(), FakeBackend()
    capacity = FlexCapacity(has_fallback, begin + until_seconds, max_shed_seconds=600.0)
    engine = engine_of(
        standard,
        governor=Governor(requests_per_minute=300),
        max_in_flight=64,
        flex=FlexTier(flex, timeout_seconds, capacity, now),
        **changes,
    )
    outcomes = await engine.answer(many(rows))
    await engine.aclose()
    assert flex.is_closed
    assert standard.is_closed
    return outcomes, standard, now() - begin


def test_thirty_percent_shed_for_ten_minutes_are_answered_at_flex_before_the_deadline(run: Run) -> None:
    flex = Flex(0.3, 1000.0 + 600.0)
    outcomes, standard, seconds = run(answered(2000, flex))
    tiers = [outcome.service_tier for outcome in outcomes]
    assert tiers.count("standard") == len(standard.sent) < 0.02 * 2000
    assert tiers.count("flex") + tiers.count("standard") == 2000
    assert sum(outcome.sheds for outcome in outcomes) == flex.sheds > 100
    assert sum(outcome.attempts for outcome in outcomes) == 2000
    assert seconds < HOUR


def test_a_tier_that_is_shed_for_ever_is_left_to_the_standard_one_in_time(run: Run) -> None:
    flex = Flex(1.0, float("inf"))
    _, standard, seconds = run(answered(2000, flex))
    assert len(standard.sent) == 2000
    # 64 in flight at the beginning, and then one request every 30 s.
    assert flex.sheds < 64 + 20 + seconds / 30 + 2
    assert seconds < 1.1 * 2000 / 300 * 60, "the pace of the standard tier is not lowered"


@pytest.mark.parametrize(
    ("has_fallback", "said"),
    [(True, "sent at the standard tier, and one request every 30 s"), (False, "for 600 s")],
)
def test_the_log_says_once_that_the_capacity_has_ended_and_that_it_is_back(
    run: Run, caplog: pytest.LogCaptureFixture, has_fallback: bool, said: str
) -> None:
    caplog.set_level("INFO")
    run(answered(2000, Flex(1.0, 1000.0 + 120.0), has_fallback=has_fallback))
    ended, back = [message for message in caplog.messages if "capacity" in message]
    assert said in ended
    assert back == "The flex tier has capacity again."


def test_when_the_deadline_is_near_the_rest_is_sent_at_the_standard_tier(run: Run) -> None:
    _, standard, seconds = run(answered(2000, Flex(0.0, 0.0), until_seconds=600.0))
    flex_rows = 2000 - len(standard.sent)
    assert 500 < flex_rows < 700, "64 in flight, a minute each, for ten minutes"
    assert seconds < 600 + 1.2 * 2000 / 300 * 60 + 900


def test_the_price_of_an_answer_is_that_of_the_tier_that_served_it(run: Run) -> None:
    outcomes, _, _ = run(answered(1, Flex(0.0, 0.0)))
    (flex,) = outcomes
    outcomes, _, _ = run(answered(1, FakeBackend()))
    (standard,) = outcomes
    assert isinstance(flex, Completion)
    assert (flex.service_tier, standard.service_tier) == ("flex", "standard")
    assert flex.cost_nano_usd * 2 == standard.cost_nano_usd


def test_a_shed_request_is_neither_a_429_nor_an_attempt_nor_an_outage(run: Run) -> None:
    recorder = Recorder()
    outcomes, _, _ = run(
        answered(1, FakeBackend(always=shed()), has_fallback=False, observers=(recorder,)),
    )
    (failure,) = outcomes
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.http_status, failure.attempts, failure.rejections) == ("server_error", 503, 0, 0)
    assert failure.sheds == recorder.requests > 10
    assert recorder.holds == []


def test_a_flex_request_may_take_fifteen_minutes(run: Run) -> None:
    outcomes, standard, seconds = run(answered(1, FakeBackend(seconds=899.0)))
    assert (len(standard.sent), outcomes[0].attempts, seconds) == (0, 1, pytest.approx(899.0, abs=1))
    outcomes, standard, seconds = run(answered(1, FakeBackend(seconds=901.0), until_seconds=800.0))
    assert (len(standard.sent), outcomes[0].attempts, seconds) == (1, 2, pytest.approx(901.0, abs=5))


def test_a_blocked_answer_at_flex_costs_half(run: Run) -> None:
    blocked = RequestError("blocked", "no", http_status=200, tokens=Tokens(7, 9), service_tier="flex")
    outcomes, _, _ = run(answered(1, FakeBackend(always=blocked)))
    (failure,) = outcomes
    assert (failure.service_tier, failure.cost_nano_usd) == ("flex", 8 * 10**9)


class InvalidFlex(FakeBackend):
    """Answers at the flex tier with what no schema accepts."""

    async def complete(self, prompt: Prompt) -> Reply:
        reply = await super().complete(prompt)
        return dataclasses.replace(reply, text="{}", service_tier="flex")


def test_invalid_answers_cost_what_the_tier_that_served_them_costs(run: Run) -> None:
    schema = {"type": "object", "required": ["label"]}
    price = Price(input_usd_per_million_tokens=1.0, output_usd_per_million_tokens=1.0)
    flex = InvalidFlex()
    outcomes, _, _ = run(answered(1, flex, parser=OutputParser(schema), max_repairs=1, price=price))
    (failure,) = outcomes
    assert len(flex.sent) == 2
    assert (failure.kind, failure.service_tier) == ("invalid_output", "flex")
    assert failure.cost_nano_usd == 2 * (7 + 9) * 1000 / 2
