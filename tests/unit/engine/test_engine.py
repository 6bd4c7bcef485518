from __future__ import annotations

import asyncio
import contextlib
import pickle
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.engine import MAX_PERMANENT_FAILURES, Engine
from airflow_provider_llmbeam.engine.journal.journal import Journal
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.outcome import OF_EVERY_PROMPT, Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.pacing.account import Account
from airflow_provider_llmbeam.engine.pacing.budget import Budget
from airflow_provider_llmbeam.engine.pacing.concurrency import ConcurrencyLimit
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.pacing.ledger import Ledger
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState
from airflow_provider_llmbeam.engine.plan import StaticBatching
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import TRANSIENT_KINDS, RequestError, RetryPolicy
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.exceptions import BudgetExceededError, JobFailedError
from airflow_provider_llmbeam.spec import Price
from airflow_provider_llmbeam.spec.fields.failure_kind import FAILURE_KINDS, FailureKind
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from tests.files import LocalFiles
from tests.hostile import examples

Run = Callable[..., Any]
Step = str | BaseException

HANG = "(hang)"
#: One dollar per token.
PRICE = Price(input_usd_per_million_tokens=1e6, output_usd_per_million_tokens=1e6)
NOT_STOPPING = sorted(set(FAILURE_KINDS) - OF_EVERY_PROMPT - TRANSIENT_KINDS - {"throttled", "quota_exhausted"})


def now() -> float:
    return asyncio.get_running_loop().time()


def error(kind: FailureKind, retry_after_seconds: float | None = None) -> RequestError:
    return RequestError(kind, f"says {kind}", http_status=418, retry_after_seconds=retry_after_seconds)


def rejected(retry_after_seconds: float = 1.0) -> RequestError:
    return RequestError("throttled", "too many", http_status=429, retry_after_seconds=retry_after_seconds)


class FakeBackend:
    """Replies to each prompt with the next step of its script, and with an answer if there is none left."""

    def __init__(
        self,
        script: Mapping[str, Sequence[Step]] | None = None,
        *,
        always: Step = "",
        seconds: float = 1.0,
        finish_reason: str = "stop",
    ) -> None:
        self._finish_reason = finish_reason
        self._script = {text: list(steps) for text, steps in (script or {}).items()}
        self._always = always
        self._seconds = seconds
        self.sent: list[str] = []
        self.in_flight = 0
        self.peak = 0
        self.is_closed = False

    async def complete(self, prompt: Prompt) -> Reply:
        self.sent.append(prompt.text)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            steps = self._script.get(prompt.text)
            step = steps.pop(0) if steps else self._always
            await asyncio.sleep(1e6 if step == HANG else self._seconds)
        finally:
            self.in_flight -= 1
        if isinstance(step, BaseException):
            raise step
        return Reply(
            text=step or f"answer to {prompt.text}",
            finish_reason=self._finish_reason,
            tokens=Tokens(7, 9, cached=3),
            model="fake-001",
        )

    async def aclose(self) -> None:
        self.is_closed = True


class Recorder:
    def __init__(self) -> None:
        self.requests = 0
        self.holds: list[float] = []
        self.outcomes: list[tuple[Prompt, Outcome]] = []

    def sent(self) -> None:
        self.requests += 1

    def rejected(self, hold_seconds: float) -> None:
        self.holds.append(hold_seconds)

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        self.outcomes.append((prompt, outcome))


def engine_of(backend: FakeBackend, **changes: Any) -> Engine:
    return Engine(
        backend,
        **{
            "governor": LearnedRate(),
            "buckets": LengthBuckets((128,), 1024),
            "parser": OutputParser(None),
            "policy": RetryPolicy(max_attempts=3, max_throttled_seconds=60.0),
            "max_in_flight": 4,
            "request_timeout_seconds": 10.0,
            "price": PRICE,
            "clock": now,
            **changes,
        },
    )


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt(text) for text in texts]


def many(count: int) -> list[Prompt]:
    """Returns prompts of equal length, which are sent in this order."""
    return prompts(*(f"{number:04}" for number in range(count)))


def test_an_answer_carries_its_cost(run: Run) -> None:
    (outcome,) = run(engine_of(FakeBackend(seconds=2.0)).answer(prompts("hello")))
    assert isinstance(outcome, Completion)
    assert (outcome.text, outcome.parsed) == ("answer to hello", None)
    assert (outcome.model, outcome.finish_reason) == ("fake-001", "stop")
    assert (outcome.tokens.input, outcome.tokens.output) == (7, 9)
    assert (outcome.attempts, outcome.rejections) == (1, 0)
    assert outcome.latency_seconds == pytest.approx(2.0)
    assert outcome.sent_at <= outcome.answered_at


def test_what_a_server_says_beside_an_answer_has_no_secret_wherever_it_goes(run: Run) -> None:
    """A server that quoted the key as its model, or as the finish reason, had it in the output and the journal."""
    blocked = RequestError("blocked", "the key s3cret", category="s3cret")
    backend = FakeBackend({"0000": ["text with s3cret"], "0001": [blocked]}, finish_reason="s3cret")
    recorder = Recorder()
    engine = engine_of(backend, redact=lambda text: text.replace("s3cret", "***"))
    answered, failed = run(engine.answer(many(2), [recorder]))
    assert (answered.text, answered.model, answered.finish_reason) == ("text with s3cret", "fake-001", "***")
    assert (failed.message, failed.category) == ("the key ***", "***")
    assert {prompt.text: outcome for prompt, outcome in recorder.outcomes} == {"0000": answered, "0001": failed}


def test_tokens_from_the_cache_of_the_provider_cost_their_own_price(run: Run) -> None:
    price = PRICE.model_copy(update={"cached_input_usd_per_million_tokens": 1e5})
    (outcome,) = run(engine_of(FakeBackend(), price=price).answer(prompts("hello")))
    assert (outcome.tokens.input, outcome.tokens.cached) == (7, 3)
    assert outcome.cost_nano_usd == 13_300_000_000


def test_the_cost_of_an_answer_includes_the_invalid_one_before_it(run: Run) -> None:
    engine = engine_of(FakeBackend({"0000": ["no JSON"]}, always="{}"), parser=OutputParser({}), max_repairs=1)
    (outcome,) = run(engine.answer(many(1)))
    assert isinstance(outcome, Completion)
    assert (outcome.tokens.input, outcome.tokens.output, outcome.tokens.cached) == (14, 18, 6)
    assert outcome.cost_nano_usd == 32 * NANO


def test_a_refused_answer_has_its_cost(run: Run) -> None:
    engine = engine_of(FakeBackend(always="no JSON"), parser=OutputParser({}), max_repairs=1)
    (outcome,) = run(engine.answer(many(1)))
    assert isinstance(outcome, Failure)
    assert (outcome.tokens.cached, outcome.cost_nano_usd) == (6, 32 * NANO)


def test_without_a_price_the_cost_of_an_answer_is_not_known(run: Run) -> None:
    engine = engine_of(FakeBackend({"0001": [error("not_found")]}), price=None)
    answered, failed = run(engine.answer(many(2)))
    assert answered.cost_nano_usd is None
    assert failed.cost_nano_usd == 0, "nothing was billed"


def test_no_prompts_give_no_outcomes(run: Run) -> None:
    assert run(engine_of(FakeBackend()).answer([])) == []


steps = st.one_of(
    st.just(""),
    st.just("   "),
    st.just(HANG),
    st.sampled_from(FAILURE_KINDS).map(error),
    st.sampled_from([ValueError("odd"), KeyError("odd"), TimeoutError(), ConnectionResetError()]),
)


@pytest.mark.fuzz
@examples(0.6)
@given(
    scripts=st.lists(st.tuples(st.integers(1, 300), st.lists(steps, max_size=4)), max_size=20),
    max_in_flight=st.integers(1, 8),
)
def test_there_is_one_outcome_per_prompt_in_order_for_any_replies(
    run: Run, scripts: list[tuple[int, list[Step]]], max_in_flight: int
) -> None:
    texts = [f"{number}".ljust(length, ".") for number, (length, _) in enumerate(scripts)]
    backend = FakeBackend({text: steps for text, (_, steps) in zip(texts, scripts, strict=True)})
    recorder = Recorder()
    batch = prompts(*texts)
    engine = engine_of(backend, max_in_flight=max_in_flight, observers=[recorder])
    outcomes = run(engine.answer(batch))
    assert len(outcomes) == len(batch)
    for prompt, outcome in zip(batch, outcomes, strict=True):
        if isinstance(outcome, Completion):
            assert outcome.text == f"answer to {prompt.text}"
    assert backend.peak <= max_in_flight
    assert recorder.requests == len(backend.sent)
    observed = dict(recorder.outcomes)
    assert len(recorder.outcomes) == len(batch)
    assert [observed[prompt] for prompt in batch] == outcomes


def test_a_bad_row_does_not_fail_its_neighbours(run: Run) -> None:
    backend = FakeBackend({"bad": [error("bad_request")]})
    outcomes = run(engine_of(backend).answer(prompts("a", "bad", "c")))
    assert [type(outcome) for outcome in outcomes] == [Completion, Failure, Completion]
    assert outcomes[1] == Failure(kind="bad_request", message="says bad_request", http_status=418, attempts=1)


@pytest.mark.parametrize("kind", sorted(TRANSIENT_KINDS))
def test_a_transient_failure_costs_an_attempt(run: Run, kind: FailureKind) -> None:
    backend = FakeBackend({"a": [error(kind), error(kind)]})
    (outcome,) = run(engine_of(backend).answer(prompts("a")))
    assert isinstance(outcome, Completion)
    assert (outcome.attempts, outcome.rejections) == (3, 0)


@pytest.mark.parametrize("kind", sorted(TRANSIENT_KINDS))
def test_a_lasting_failure_ends_after_the_last_attempt(run: Run, kind: FailureKind) -> None:
    backend = FakeBackend(always=error(kind))
    (outcome,) = run(engine_of(backend).answer(prompts("a")))
    assert outcome == Failure(kind=kind, message=f"says {kind}", http_status=418, attempts=3)
    assert len(backend.sent) == 3


@pytest.mark.parametrize("kind", NOT_STOPPING)
def test_a_permanent_failure_is_not_retried(run: Run, kind: FailureKind) -> None:
    backend = FakeBackend({"a": [error(kind)]})
    (outcome,) = run(engine_of(backend).answer(prompts("a")))
    assert outcome.kind == kind
    assert backend.sent == ["a"]


def test_a_429_costs_time_but_no_attempts(run: Run) -> None:
    async def main() -> tuple[Outcome, float]:
        started = now()
        backend = FakeBackend({"a": [rejected(3.0)] * 10}, seconds=0.0)
        (outcome,) = await engine_of(backend).answer(prompts("a"))
        return outcome, now() - started

    outcome, seconds = run(main())
    assert isinstance(outcome, Completion)
    assert (outcome.attempts, outcome.rejections) == (1, 10)
    assert seconds >= 30.0


def test_the_latency_of_an_answer_is_that_of_its_last_request(run: Run) -> None:
    backend = FakeBackend({"a": [rejected(30.0), error("server_error")]}, seconds=2.0)
    (outcome,) = run(engine_of(backend).answer(prompts("a")))
    assert outcome.latency_seconds == pytest.approx(2.0)


def test_an_outcome_has_the_times_of_its_429s_and_of_its_wait_for_the_rate(run: Run) -> None:
    backend = FakeBackend({"a": [rejected(3.0), rejected(3.0)], "b": [rejected(3.0), error("bad_request")]})
    answered, failed = run(engine_of(backend).answer(prompts("a", "b")))
    assert isinstance(answered, Completion)
    assert isinstance(failed, Failure)
    assert (len(answered.rejected_at), len(failed.rejected_at)) == (2, 1)
    assert answered.sent_at <= answered.rejected_at[0] <= answered.rejected_at[1] <= answered.answered_at
    assert failed.rejected_at[0] <= failed.failed_at
    assert answered.held_seconds >= 5.0


def test_a_row_that_gets_only_429s_is_given_up_eventually(run: Run) -> None:
    backend = FakeBackend(always=rejected(7.0), seconds=0.0)
    (outcome,) = run(engine_of(backend).answer(prompts("a")))
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.http_status, outcome.message) == ("throttled", 429, "too many")
    assert outcome.attempts == 0
    assert 8 <= outcome.rejections <= 10
    assert len(backend.sent) == outcome.rejections


@pytest.mark.parametrize(
    "between", [error("server_error"), error("connection"), HANG], ids=["5xx", "cut", "timeout"]
)
def test_only_an_unbroken_run_of_429s_counts_towards_giving_up(run: Run, between: Step) -> None:
    backend = FakeBackend({"a": [rejected(40.0), between, rejected(40.0), rejected(15.0)]}, seconds=0.0)
    (outcome,) = run(engine_of(backend).answer(prompts("a")))
    assert isinstance(outcome, Completion), outcome
    assert (outcome.attempts, outcome.rejections) == (2, 3)


def test_a_request_without_answer_times_out(run: Run) -> None:
    backend = FakeBackend(always=HANG)
    (outcome,) = run(engine_of(backend).answer(prompts("a")))
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.attempts) == ("timeout", 3)
    assert outcome.message == "no answer within 10 s (`request_timeout_seconds`)"
    assert backend.in_flight == 0


def test_a_defect_of_the_backend_fails_only_its_row(run: Run) -> None:
    backend = FakeBackend({"bad": [ZeroDivisionError("by zero")]})
    bad, good = run(engine_of(backend).answer(prompts("bad", "good")))
    assert bad == Failure(kind="internal", message="ZeroDivisionError: by zero", attempts=1)
    assert isinstance(good, Completion)
    assert sorted(backend.sent) == ["bad", "good"]


def test_an_answer_that_the_parser_refuses_is_billed_and_not_retried(run: Run) -> None:
    backend = FakeBackend(always="no JSON")
    (outcome,) = run(engine_of(backend, parser=OutputParser({})).answer(prompts("a")))
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.http_status, outcome.attempts) == ("invalid_output", 200, 1)
    assert (outcome.tokens.input, outcome.tokens.output) == (7, 9)
    assert backend.sent == ["a"]


REFUSED = (
    "\n\nAn earlier answer to this was refused: the answer is not JSON "
    "(Expecting value: line 1 column 1 (char 0)): {0}\nAnswer with valid JSON alone."
)


def test_an_invalid_answer_is_repaired_with_the_reason_and_both_requests_are_billed(run: Run) -> None:
    backend = FakeBackend({"a": ["no JSON"]}, always='{"a": 1}')
    recorder = Recorder()
    engine = engine_of(backend, parser=OutputParser({}), max_repairs=1, observers=[recorder])
    (outcome,) = run(engine.answer(prompts("a")))
    assert isinstance(outcome, Completion)
    assert (outcome.parsed, outcome.attempts, outcome.repairs) == ({"a": 1}, 2, 1)
    assert (outcome.tokens.input, outcome.tokens.output) == (14, 18)
    assert backend.sent == ["a", "a" + REFUSED.format("no JSON")]
    assert recorder.outcomes == [(Prompt("a"), outcome)], "the answer is kept under the prompt that was asked for"


def test_a_repair_quotes_only_the_last_error_and_a_never_valid_row_fails_with_all_its_tokens(run: Run) -> None:
    backend = FakeBackend({"a": ["one"], "a" + REFUSED.format("one"): ["two"]}, always="three")
    (outcome,) = run(engine_of(backend, parser=OutputParser({}), max_repairs=2).answer(prompts("a")))
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.attempts, outcome.tokens.input) == ("invalid_output", 3, 21)
    assert backend.sent == ["a", "a" + REFUSED.format("one"), "a" + REFUSED.format("two")]


def test_a_truncated_answer_is_not_repaired(run: Run) -> None:
    backend = FakeBackend(always='{"a": ', finish_reason="max_tokens")
    (outcome,) = run(engine_of(backend, parser=OutputParser({}), max_repairs=5).answer(prompts("a")))
    assert isinstance(outcome, Failure)
    assert len(backend.sent) == 1


def test_a_structured_answer_comes_with_its_value(run: Run) -> None:
    (outcome,) = run(engine_of(FakeBackend(always='{"a": 1}'), parser=OutputParser({})).answer(prompts("a")))
    assert outcome.parsed == {"a": 1}


@pytest.mark.parametrize("kind", sorted(OF_EVERY_PROMPT))
def test_failures_that_would_affect_every_row_stop_sending(run: Run, kind: FailureKind) -> None:
    backend = FakeBackend(always=error(kind))
    outcomes = run(engine_of(backend, max_in_flight=1).answer(many(50)))
    assert len(backend.sent) == MAX_PERMANENT_FAILURES
    assert {outcome.kind for outcome in outcomes} == {kind}
    assert [outcome.attempts for outcome in outcomes] == [1] * MAX_PERMANENT_FAILURES + [0] * (
        50 - MAX_PERMANENT_FAILURES
    )
    assert outcomes[-1].message == f"not sent, as others before it failed: says {kind}"


@pytest.mark.parametrize("kind", sorted(OF_EVERY_PROMPT))
def test_a_few_permanent_failures_do_not_stop_sending(run: Run, kind: FailureKind) -> None:
    script = {prompt.text: [error(kind)] for prompt in many(MAX_PERMANENT_FAILURES - 1)}
    backend = FakeBackend(script)
    run(engine_of(backend, max_in_flight=1).answer(many(50)))
    assert len(backend.sent) == 50


@pytest.mark.parametrize("kind", sorted(OF_EVERY_PROMPT))
def test_after_one_answer_permanent_failures_no_longer_stop_sending(run: Run, kind: FailureKind) -> None:
    first, *rest = many(50)
    backend = FakeBackend({prompt.text: [error(kind)] for prompt in rest})
    outcomes = run(engine_of(backend, max_in_flight=1).answer([first, *rest]))
    assert len(backend.sent) == 50
    assert [outcome.attempts for outcome in outcomes] == [1] * 50


@pytest.mark.parametrize("kind", NOT_STOPPING)
def test_no_other_failure_stops_sending(run: Run, kind: FailureKind) -> None:
    backend = FakeBackend(always=error(kind))
    run(engine_of(backend).answer(many(3 * MAX_PERMANENT_FAILURES)))
    assert len(backend.sent) == 3 * MAX_PERMANENT_FAILURES


def test_an_exhausted_quota_leaves_the_rest_unsent(run: Run) -> None:
    backend = FakeBackend({"0002": [error("quota_exhausted")]})
    outcomes = run(engine_of(backend, max_in_flight=1).answer(many(10)))
    assert backend.sent == ["0000", "0001", "0002"]
    assert [isinstance(outcome, Completion) for outcome in outcomes] == [True] * 2 + [False] * 8
    assert outcomes[2].message == "says quota_exhausted"
    assert (outcomes[3].kind, outcomes[3].attempts) == ("quota_exhausted", 0)
    assert outcomes[3].message == "not sent, as others before it failed: says quota_exhausted"


def test_sending_stays_stopped_for_the_next_batch(run: Run) -> None:
    async def main() -> list[Outcome]:
        engine = engine_of(backend)
        await engine.answer(prompts("a"))
        return await engine.answer(prompts("b"))

    backend = FakeBackend({"a": [error("quota_exhausted")]})
    (outcome,) = run(main())
    assert outcome.kind == "quota_exhausted"
    assert backend.sent == ["a"]


def test_a_row_that_waits_for_admission_is_not_sent_after_sending_has_stopped(run: Run) -> None:
    backend = FakeBackend({"0000": [error("quota_exhausted")]}, seconds=0.0)
    governor = Governor(requests_per_minute=6)
    outcomes = run(engine_of(backend, governor=governor, max_in_flight=4).answer(many(4)))
    assert {outcome.kind for outcome in outcomes} == {"quota_exhausted"}
    assert backend.sent == ["0000"]


def test_a_row_sent_before_sending_stopped_keeps_its_attempts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.5)  # it still waits for its next attempt when sending stops
    backend = FakeBackend({"0000": [error("server_error")], "0001": [error("quota_exhausted")]})
    recorder = Recorder()
    outcomes = run(engine_of(backend, observers=[recorder]).answer(many(2)))
    assert [outcome.kind for outcome in outcomes] == ["quota_exhausted", "quota_exhausted"]
    assert sum(outcome.attempts for outcome in outcomes) == recorder.requests == 2


def test_the_first_reason_to_stop_is_reported(run: Run) -> None:
    """A request in flight when sending stops may fail for another reason."""
    *first, last = many(MAX_PERMANENT_FAILURES + 1)
    script = {prompt.text: [error("unauthorized")] for prompt in first}
    backend = FakeBackend({**script, last.text: [HANG]})
    impatient = RetryPolicy(max_attempts=1, max_throttled_seconds=60.0)

    async def main() -> list[Outcome]:
        engine = engine_of(backend, max_in_flight=MAX_PERMANENT_FAILURES + 1, policy=impatient)
        assert (await engine.answer([*first, last]))[-1].kind == "timeout"
        return await engine.answer(prompts("next"))

    (outcome,) = run(main())
    assert outcome.kind == "unauthorized"
    assert "next" not in backend.sent


def turns_of(log: list[Outcome], last: int) -> Callable[[int, Outcome], Prompt | None]:
    """Returns what continues each prompt `index` with `index-1`, `index-2` and so on."""
    counts: Counter[int] = Counter()

    def next_turn(index: int, outcome: Outcome) -> Prompt | None:
        log.append(outcome)
        counts[index] += 1
        return Prompt(f"{index}-{counts[index]}") if counts[index] <= last else None

    return next_turn


def test_turns_follow_each_other_and_those_of_others_are_sent_meanwhile(run: Run) -> None:
    backend, recorder, log = FakeBackend({"0": [error("server_error")]}), Recorder(), list[Outcome]()
    (*_, last) = run(engine_of(backend).answer(prompts("0", "1", "2"), [recorder], None, turns_of(log, 2)))
    assert isinstance(last, Completion)
    assert last.text == "answer to 2-2"
    assert len(log) == len(recorder.outcomes) == 9
    for index in range(3):
        assert [text for text in backend.sent if text[0] == str(index)][-3:] == [
            f"{index}",
            f"{index}-1",
            f"{index}-2",
        ]
    assert backend.peak == 3


def test_a_spent_budget_ends_conversations_between_their_turns(run: Run) -> None:
    backend, log = FakeBackend(), list[Outcome]()
    engine = engine_of(backend, budget=Budget(20.0))
    with pytest.raises(BudgetExceededError):
        run(engine.answer(prompts("0"), (), None, turns_of(log, 5)))
    assert backend.sent == ["0", "0-1"]
    assert len(log) == 2


def test_observers_see_every_request_rejection_and_outcome(run: Run) -> None:
    first, second = Recorder(), Recorder()
    backend = FakeBackend({"a": [rejected(2.0), error("server_error")], "b": [error("blocked")]})
    outcomes = run(engine_of(backend, observers=[first, second]).answer(prompts("a", "b")))
    for recorder in (first, second):
        assert recorder.requests == sum(outcome.attempts + outcome.rejections for outcome in outcomes) == 4
        assert len(recorder.holds) == 1
        assert 2.0 <= recorder.holds[0] <= 3.0, "the server's advice, and at most a second of jitter"
        assert dict(recorder.outcomes) == dict(zip(prompts("a", "b"), outcomes, strict=True))


def test_an_outcome_is_observed_when_it_arrives(run: Run) -> None:
    recorder = Recorder()

    async def main() -> int:
        task = asyncio.ensure_future(engine_of(backend, observers=[recorder]).answer(prompts("slow", "fast")))
        await asyncio.sleep(5)
        seen = len(recorder.outcomes)
        await task
        return seen

    backend = FakeBackend({"slow": [HANG]})
    assert run(main()) == 1


def test_two_batches_share_the_limit_of_requests_in_flight(run: Run) -> None:
    backend = FakeBackend()

    async def main() -> None:
        engine = engine_of(backend, max_in_flight=4)
        await asyncio.gather(engine.answer(many(20)), engine.answer(many(20)))

    run(main())
    assert len(backend.sent) == 40
    assert backend.peak == 4


def test_the_longest_prompts_are_sent_first(run: Run) -> None:
    backend = FakeBackend()
    run(engine_of(backend, max_in_flight=1).answer(prompts("a" * 8, "a" * 80, "a" * 40)))
    assert [len(text) for text in backend.sent] == [80, 40, 8]


def test_the_prediction_learns_from_each_answer(run: Run) -> None:
    buckets = LengthBuckets((128,), 1024)
    run(engine_of(FakeBackend(), buckets=buckets).answer(prompts("a")))
    assert buckets.expected_output_tokens(1) == 9


def test_a_quota_spaces_the_requests(run: Run) -> None:
    async def main() -> float:
        started = now()
        await engine_of(FakeBackend(seconds=0.0), governor=Governor(requests_per_minute=60)).answer(many(31))
        return now() - started

    assert run(main()) == pytest.approx(30, abs=2)


def test_closing_the_engine_closes_the_backend(run: Run) -> None:
    backend = FakeBackend()
    run(engine_of(backend).aclose())
    assert backend.is_closed


@pytest.mark.parametrize("levels", [600, 700, 980, 100_000])
def test_an_absurdly_nested_answer_fails_only_its_row(run: Run, tmp_path: Path, levels: int) -> None:
    """The answer is JSON and matches the schema, but `dataclasses.asdict` in the journal fails on it."""
    journals = Journal(f"{tmp_path}/", files=LocalFiles())
    batch = prompts("deep", "flat")
    backend = FakeBackend({"deep": ["[" * levels + "]" * levels]}, always="{}")
    with closing(journals.batch(batch, ["deep", "flat"])) as journal:
        outcomes = run(engine_of(backend, parser=OutputParser({})).answer(batch, record=journal))
    assert [type(outcome) for outcome in outcomes] == [Failure, Completion]
    pickle.dumps(outcomes)
    assert [type(known) for known in journals.batch(batch, ["deep", "flat"]).earlier] == [Failure, Completion]


class StaticFakeBackend(FakeBackend):
    """Answers whole requests, and refuses those that contain a bad prompt."""

    def __init__(self, bad: set[str], **changes: Any) -> None:
        super().__init__(**changes)
        self.bad = bad
        self.batches: list[list[str]] = []

    async def complete_batch(self, batch: Sequence[Prompt]) -> list[Reply]:
        self.batches.append([prompt.text for prompt in batch])
        if self.bad & set(self.batches[-1]):
            raise RequestError("bad_request", "one of them is bad", http_status=400)
        return [await self.complete(prompt) for prompt in batch]


def test_a_bad_prompt_in_a_static_batch_is_found_by_bisection_and_its_neighbours_are_answered(run: Run) -> None:
    backend = StaticFakeBackend({"0005"})
    engine = engine_of(backend, batching=StaticBatching(max_padded_tokens=8))
    outcomes = run(engine.answer(many(16)))
    assert [isinstance(outcome, Completion) for outcome in outcomes] == [number != 5 for number in range(16)]
    assert outcomes[5].message == "one of them is bad"
    assert sum(outcome.attempts for outcome in outcomes) == len(backend.batches)


def test_a_static_batch_counts_its_request_once_and_its_padding(run: Run) -> None:
    engine = engine_of(StaticFakeBackend(set()), batching=StaticBatching(max_padded_tokens=1000))
    outcomes = run(engine.answer(prompts("a" * 40, "b")))
    assert sorted(outcome.attempts for outcome in outcomes) == [0, 1]
    assert {outcome.padded_tokens for outcome in outcomes} == {7}


def useless() -> RequestError:
    """Returns the error of a billed reply that is no answer."""
    return RequestError("garbage", "no candidates", http_status=200, tokens=Tokens(7, 2))


@pytest.mark.parametrize("replies", [1, 2, 3], ids=["one", "two", "all three attempts"])
def test_billed_replies_that_are_no_answer_are_in_the_bill_of_the_row(run: Run, replies: int) -> None:
    budget = budget_of(100)
    backend = FakeBackend({"a": [useless()] * replies})
    (outcome,) = run(engine_of(backend, budget=budget).answer(prompts("a")))
    assert isinstance(outcome, Failure if replies == 3 else Completion)
    answer = (0, 0) if replies == 3 else (7, 9)
    assert (outcome.tokens.input, outcome.tokens.output) == (7 * replies + answer[0], 2 * replies + answer[1])
    assert outcome.cost_nano_usd == round(budget.spent_usd * NANO)


def test_a_billed_reply_to_several_prompts_that_is_no_answer_is_counted_once(run: Run) -> None:
    class Backend(StaticFakeBackend):
        async def complete_batch(self, batch: Sequence[Prompt]) -> list[Reply]:
            replies = await super().complete_batch(batch)
            if len(self.batches) == 1:
                raise useless()
            return replies

    budget = budget_of(100)
    engine = engine_of(Backend(set()), batching=StaticBatching(max_padded_tokens=1000), budget=budget)
    outcomes = run(engine.answer(prompts("a", "b")))
    assert sum(outcome.tokens.output for outcome in outcomes) == 2 + 2 * 9
    assert sum(outcome.cost_nano_usd for outcome in outcomes) == round(budget.spent_usd * NANO)


def test_a_concurrency_limit_lowers_the_requests_in_flight(run: Run) -> None:
    limit = ConcurrencyLimit(8)
    for _ in range(100):
        limit.dropped()
    backend = FakeBackend()
    run(engine_of(backend, max_in_flight=8, concurrency=limit).answer(many(6)))
    assert backend.peak <= 5


def budget_of(requests: float) -> Budget:
    """Returns a budget for a number of requests, which have 7 input and 9 output tokens each, at `PRICE`."""
    return Budget(16.0 * requests)


class Batch:
    """One batch that exceeded a budget."""

    def __init__(self, run: Run, backend: FakeBackend, batch: list[Prompt], **changes: Any) -> None:
        self.recorder = Recorder()
        self.engine = engine_of(backend, **changes)

        async def answer() -> None:
            began = now()
            try:
                await self.engine.answer(batch, [self.recorder])
            finally:
                self.seconds = now() - began

        with pytest.raises(BudgetExceededError) as caught:
            run(answer())
        self.message = str(caught.value)


def test_a_spent_budget_stops_sending_and_requests_in_flight_are_awaited(run: Run) -> None:
    backend = FakeBackend()
    ended = Batch(run, backend, many(100), budget=budget_of(9.5), max_in_flight=4)
    count = len(backend.sent)
    assert 10 <= count <= 13, "the tenth answer is too much, and three others are under way then"
    assert ended.recorder.requests == len(ended.recorder.outcomes) == count
    assert all(isinstance(outcome, Completion) for _, outcome in ended.recorder.outcomes)
    assert ended.message.startswith(
        f"This process has spent ${16 * count} on {7 * count} input and {9 * count} output "
    )


@given(count=st.integers(1, 60), afford=st.integers(1, 60), max_in_flight=st.integers(1, 16))
@examples(0.6)
def test_the_overrun_is_at_most_the_requests_in_flight(
    run: Run, count: int, afford: int, max_in_flight: int
) -> None:
    backend = FakeBackend()
    engine = engine_of(backend, budget=budget_of(afford), max_in_flight=max_in_flight)
    try:
        assert len(run(engine.answer(many(count)))) == count
    except BudgetExceededError:
        assert afford < len(backend.sent) < count
    assert len(backend.sent) <= afford + max_in_flight


def test_a_batch_whose_last_answer_spends_the_budget_is_complete(run: Run) -> None:
    outcomes = run(engine_of(FakeBackend(), budget=budget_of(9.5), max_in_flight=1).answer(many(10)))
    assert len(outcomes) == 10


def test_after_a_spent_budget_the_next_batch_sends_nothing(run: Run) -> None:
    backend = FakeBackend()
    engine = engine_of(backend, budget=budget_of(0.5))

    async def both() -> None:
        await engine.answer(prompts("a"))
        await engine.answer(prompts("b"))

    with pytest.raises(BudgetExceededError):
        run(both())
    assert backend.sent == ["a"]


def test_after_a_spent_budget_an_empty_batch_is_no_error(run: Run) -> None:
    engine = engine_of(FakeBackend(), budget=budget_of(0.5))

    async def both() -> list[Outcome]:
        await engine.answer(prompts("a"))
        return await engine.answer([])

    assert run(both()) == []


def test_a_retry_costs_money_too(run: Run) -> None:
    backend = FakeBackend({"0001": [RequestError("server_error", "no", http_status=500)]}, seconds=1.0)
    ended = Batch(run, backend, many(2), budget=budget_of(0.5), max_in_flight=2)
    assert backend.sent == ["0000", "0001"]
    assert [prompt.text for prompt, _ in ended.recorder.outcomes] == ["0000"]


def test_after_a_spent_budget_an_invalid_answer_is_not_repaired(run: Run) -> None:
    backend = FakeBackend(always="no JSON")
    ended = Batch(run, backend, many(1), budget=budget_of(0.5), parser=OutputParser({}), max_repairs=1)
    assert len(backend.sent) == 1
    assert ended.recorder.outcomes == []


def test_a_refused_prompt_is_paid_for(run: Run) -> None:
    refusal = RequestError("blocked", "no", http_status=200, tokens=Tokens(1000))
    backend = FakeBackend({"0000": [refusal]})
    ended = Batch(run, backend, many(3), budget=budget_of(2), max_in_flight=1)
    assert backend.sent == ["0000"]
    assert ended.message.startswith("This process has spent $1,000 on 1,000 input ")


def test_no_request_waits_for_the_quota_after_sending_has_stopped(run: Run) -> None:
    backend = FakeBackend()
    governor = Governor(requests_per_minute=1)
    ended = Batch(run, backend, many(200), budget=budget_of(0.5), max_in_flight=50, governor=governor)
    assert len(backend.sent) < 5
    assert ended.seconds < 60, "of the simulated clock: the second request would be admitted after a minute"


def test_the_half_of_a_split_request_that_was_answered_is_kept(run: Run) -> None:
    backend = StaticFakeBackend({"0003"})
    batching = StaticBatching(max_padded_tokens=10_000)
    ended = Batch(run, backend, many(4), budget=budget_of(0.5), batching=batching, max_in_flight=1)
    assert {prompt.text for prompt, _ in ended.recorder.outcomes} == {"0000", "0001"}
    assert all(isinstance(outcome, Completion) for _, outcome in ended.recorder.outcomes)


class FullDisk(Recorder):
    """An observer that can keep none of the answers."""

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        super().finished(prompt, outcome)
        raise OSError(28, "No space left on device")


def test_an_observer_that_fails_ends_sending_and_still_sees_what_is_in_flight(run: Run) -> None:
    backend, observer = FakeBackend(), FullDisk()
    engine = engine_of(backend, max_in_flight=4)
    with pytest.raises(OSError, match="No space left on device"):
        run(engine.answer(many(40), (observer,)))
    assert len(backend.sent) == len(observer.outcomes) == 4


def test_an_observer_that_fails_leaves_other_batches_alone(run: Run) -> None:
    engine = engine_of(FakeBackend(), max_in_flight=4)
    with pytest.raises(OSError, match="No space left on device"):
        run(engine.answer(many(4), (FullDisk(),)))
    assert all(isinstance(one, Completion) for one in run(engine.answer(many(4))))


@pytest.mark.parametrize("kind", ["throttled", "server_error"])
def test_a_request_waits_as_the_server_has_told_it(run: Run, kind: FailureKind) -> None:
    """A 503 with `Retry-After: 9` was sent again after at most a second."""

    async def main() -> float:
        started = now()
        await engine_of(FakeBackend({"a": [error(kind, 9.0)]}, seconds=0.0)).answer(prompts("a"))
        return now() - started

    assert run(main()) >= 9.0


def test_a_row_that_waits_as_it_was_told_does_not_delay_the_end_of_a_job(run: Run) -> None:
    async def main() -> float:
        started = now()
        engine = engine_of(FakeBackend({"a": [error("server_error", 500.0)]}, seconds=0.0))
        answering = asyncio.ensure_future(engine.answer(prompts("a")))
        await asyncio.sleep(1.0)
        engine.stop(OSError("stopped"))
        with pytest.raises(OSError, match="stopped"):
            await answering
        return now() - started

    assert run(main()) == pytest.approx(1.0)


def test_a_slow_rate_of_an_earlier_run_does_not_last_where_streams_break(run: Run) -> None:
    """A rate of 0.8 requests per second, where 20 % of the streams broke, took over 240 s for 400 rows."""
    texts = [prompt.text for prompt in many(400)]
    script = {text: [error("garbage")] for text in texts[::5]}
    state = LearnedRateState(base_rps=0.8, measured=50.0, burst=5.0).for_next_run()

    async def main() -> tuple[list[Outcome], float]:
        started = now()
        engine = engine_of(FakeBackend(script, seconds=0.05), governor=LearnedRate(state), max_in_flight=64)
        outcomes = await engine.answer(prompts(*texts))
        return outcomes, now() - started

    outcomes, seconds = run(main())
    assert all(isinstance(outcome, Completion) for outcome in outcomes)
    assert seconds < 60


def of_16_usd(count: int) -> list[Prompt]:
    """Returns prompts whose requests are expected to cost what they do: 7 input tokens, and 9 output tokens."""
    return prompts(*(f"{number:028}" for number in range(count)))


class LedgerFile:
    content: bytes | None = None
    usd = 1.0

    def change(self, changed: Callable[[Ledger], Ledger]) -> Ledger:
        ledger = changed(Ledger.read(self.content, self.usd, "x"))
        self.content = ledger.content()
        return ledger


def shared_budget_of(requests: float, file: LedgerFile, name: str = "a") -> Budget:
    """Returns the part of a process in a budget for a number of requests of `of_16_usd`."""
    file.usd = usd = 16.0 * requests
    options: dict[str, Any] = {"over": "month", "interval_seconds": 0.0, "first_requests": 2}
    account = Account(file.change, usd, name=name, clock=float, in_background=lambda called: called(), **options)
    return Budget(account=account)


@given(afford=st.integers(1, 40), max_in_flight=st.integers(1, 16))
@examples(0.6)
def test_runs_that_share_a_budget_spend_it_to_the_last_request_and_no_more(
    run: Run, afford: int, max_in_flight: int
) -> None:
    file, sent, buckets = LedgerFile(), 0, LengthBuckets((128,), 9)
    for name in "abc":
        backend, budget = FakeBackend(), shared_budget_of(afford, file, name)
        engine = engine_of(backend, budget=budget, max_in_flight=max_in_flight, buckets=buckets)
        with contextlib.suppress(BudgetExceededError):
            run(engine.answer(of_16_usd(20)))
        budget.account.close()
        sent += len(backend.sent)
    assert sent == min(60, afford)


def test_a_shared_budget_that_is_spent_names_what_is_left_of_it(run: Run) -> None:
    budget = shared_budget_of(5.5, LedgerFile())
    ended = Batch(run, FakeBackend(), of_16_usd(20), budget=budget, buckets=LengthBuckets((128,), 9))
    assert (
        "of the $88 of `limits.budget` 'month', which other runs spend, too, $8 are neither spent nor"
        in ended.message
    )
    assert "The journal, if there is one, has the answers so far" in ended.message


def test_a_ledger_that_cannot_be_read_ends_the_batch_and_nothing_is_sent(run: Run) -> None:
    file, backend = LedgerFile(), FakeBackend()
    file.content = b"{"
    with pytest.raises(JobFailedError, match="cannot be read"):
        run(engine_of(backend, budget=shared_budget_of(5, file)).answer(of_16_usd(20)))
    assert backend.sent == []


def test_a_request_that_fails_keeps_nothing_reserved(run: Run) -> None:
    refused = {f"row {number}": [RequestError("bad_request", "no")] for number in range(20)}
    budget = shared_budget_of(3, LedgerFile())
    for number in range(5):
        backend = FakeBackend(refused)
        run(engine_of(backend, budget=budget, buckets=LengthBuckets((128,), 9)).answer(prompts(f"row {number}")))
        assert len(backend.sent) == 1


class Window(Budget):
    """A budget that begins anew when it is told to."""

    is_over = True

    @property
    def is_spent(self) -> bool:
        return self.is_over


def test_a_budget_that_begins_anew_leaves_the_pace_and_the_waits_as_they_were(run: Run) -> None:
    """After the first window that was spent, nothing waited for the governor any more."""
    backend, budget = FakeBackend({"b": [error("server_error", 9.0)]}, seconds=0.0), Window()

    async def main() -> float:
        engine = engine_of(backend, budget=budget, governor=Governor(requests_per_minute=60))
        with pytest.raises(BudgetExceededError):
            await engine.answer(prompts("a"))
        engine._release_all()  # as an answer that spends it does
        budget.is_over, started = False, now()
        await engine.answer(prompts("b", "c", "d", "e"))
        return now() - started

    assert run(main()) >= 9.0
    assert backend.sent.count("b") == 2


def test_a_block_that_is_refused_while_others_are_in_flight_is_awaited_after_an_earlier_end(run: Run) -> None:
    """The wait for it gave the loop no turn, so that what was in flight never ended."""
    backend = FakeBackend(seconds=5.0)
    budget = shared_budget_of(2, LedgerFile())

    async def main() -> list[Outcome]:
        engine = engine_of(backend, budget=budget, buckets=LengthBuckets((128,), 9))
        engine._release_all()
        return await engine.answer(of_16_usd(3))

    with pytest.raises(BudgetExceededError):
        run(main())
    assert len(backend.sent) == 2


@pytest.mark.parametrize("kind", ["server_error", "timeout", "unauthorized"])
def test_a_resident_engine_ends_with_an_error_where_others_would_fail_all_that_is_not_sent(
    run: Run, kind: FailureKind
) -> None:
    backend = FakeBackend(always=error(kind))
    with pytest.raises(JobFailedError, match=f"says {kind}"):
        run(engine_of(backend, is_resident=True).answer(many(200)))
    assert len({*backend.sent}) < 200
