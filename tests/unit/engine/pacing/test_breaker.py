"""Systematic failures and outages, over thousands of rows and in no time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.pacing.outage import Outage
from airflow_provider_llmbeam.engine.pacing.pilot import Pilot
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError, RetryPolicy
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.exceptions import ModelUnavailableError
from bench.simulation.servers import Bucket

Run = Callable[..., Any]
Answer = tuple[str, str]  # text and finish reason

GOOD: Answer = ('{"a": 1}', "stop")
CUT: Answer = ('{"a": ', "max_tokens")
LATENCY_SECONDS = 2.0
REFUSED_CONNECTION = RequestError("connection", "Connect call failed", is_unconnected=True)
RESET = RequestError("connection", "Connection reset by peer")
OVERLOADED = RequestError("server_error", "no healthy upstream", http_status=503)
DEFECT = RequestError("server_error", "boom", http_status=500)


def now() -> float:
    return asyncio.get_running_loop().time()


def again(error: RequestError) -> RequestError:
    """Returns the error for one more request: a raised error grows with each traceback."""
    return RequestError(
        error.kind, error.message, http_status=error.http_status, is_unconnected=error.is_unconnected
    )


class Server:
    """Answers each prompt as a function of its number and the time in seconds since the first request."""

    def __init__(self, answer: Callable[[int, float], Answer | Exception]) -> None:
        self._answer = answer
        self._began: float | None = None
        self.sent = 0
        self.in_flight = self.peak = 0

    async def complete(self, prompt: Prompt) -> Reply:
        self._began = now() if self._began is None else self._began
        self.sent += 1
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        number = int(prompt.text.split()[0])
        found = self._answer(number, now() - self._began)
        await asyncio.sleep(0.01 if isinstance(found, Exception) else LATENCY_SECONDS)
        self.in_flight -= 1
        later = self._answer(number, now() - self._began)  # a server that stops breaks its connections
        for fault in (found, later):
            if isinstance(fault, RequestError):
                raise again(fault)
        assert not isinstance(found, Exception)
        return Reply(text=found[0], finish_reason=found[1], tokens=Tokens(1, 1), model="m")

    async def aclose(self) -> None: ...


def engine_of(server: Server, **changes: Any) -> Engine:
    return Engine(
        server,
        **{
            "governor": Governor(requests_per_minute=1e9),
            "buckets": LengthBuckets((128,), 20),
            "parser": OutputParser({}),
            "policy": RetryPolicy(max_attempts=5, max_throttled_seconds=60.0),
            "max_in_flight": 64,
            "request_timeout_seconds": 100.0,
            "pilot": Pilot(max_output_tokens=20),
            "clock": now,
            **changes,
        },
    )


def rows(count: int) -> list[Prompt]:
    """Returns prompts whose texts are numbers; later ones are longer."""
    return [Prompt("0" * (64 * number // count) + str(number)) for number in range(count)]


async def timed(engine: Engine, batch: Sequence[Prompt]) -> tuple[float, list[Outcome]]:
    began = now()
    outcomes = await engine.answer(batch)
    return now() - began, outcomes


def kinds(outcomes: Sequence[Outcome]) -> Counter[str]:
    return Counter("answer" if isinstance(outcome, Completion) else outcome.kind for outcome in outcomes)


@pytest.mark.parametrize("repairs", [0, 1, 2, 3])
def test_a_systematic_refusal_costs_at_most_64_requests_and_says_what_to_change(run: Run, repairs: int) -> None:
    server = Server(lambda *_: ('{"a": ', "stop"))
    pilot = Pilot(max_repairs=repairs, max_output_tokens=20)
    outcomes = run(engine_of(server, pilot=pilot, max_repairs=repairs).answer(rows(5000)))
    assert server.sent <= 64
    assert kinds(outcomes) == {
        "invalid_output": server.sent // (1 + repairs),
        "not_sent": 5000 - server.sent // (1 + repairs),
    }
    asked = server.sent // (1 + repairs)
    unsent = [outcome for outcome in outcomes if outcome.kind == "not_sent"]
    assert unsent[0].message.startswith(f"{asked} of {asked} answers cannot be used: change `prompt.template`")
    assert {outcome.attempts for outcome in unsent} == {0}


def test_cut_answers_name_the_limit(run: Run) -> None:
    outcomes = run(engine_of(Server(lambda *_: CUT)).answer(rows(5000)))
    assert {outcome.message for outcome in outcomes if outcome.kind == "not_sent"} == {
        "32 of 32 answers were cut at `generation.max_output_tokens` = 20: raise it. Nothing more was sent."
    }


def test_batches_that_share_an_engine_share_its_pilot(run: Run) -> None:
    server = Server(lambda *_: CUT)

    async def main() -> list[list[Outcome]]:
        engine = engine_of(server)
        first = await asyncio.gather(*[engine.answer(rows(500)) for _ in range(4)])
        return [*first, await engine.answer(rows(500))]

    outcomes = run(main())
    assert server.sent == 32
    assert sum(kinds(each)["not_sent"] for each in outcomes) == 5 * 500 - 32


def test_an_engine_that_is_opened_again_for_the_same_run_sends_nothing(run: Run) -> None:
    """A bundle that fails loses its engine, and a runner tries it four times."""
    server, pilot = Server(lambda *_: CUT), Pilot()

    async def main() -> list[Outcome]:
        await engine_of(server, pilot=pilot).answer(rows(500))
        return await engine_of(server, pilot=pilot).answer(rows(500))

    assert kinds(run(main())) == {"not_sent": 500}
    assert server.sent == 32


@pytest.mark.parametrize("refused_of_ten", [1, 5, 8])
def test_mixed_results_are_all_asked_for(run: Run, refused_of_ten: int) -> None:
    server = Server(lambda number, _: CUT if number % 10 < refused_of_ten else GOOD)
    outcomes = run(engine_of(server).answer(rows(2000)))
    assert kinds(outcomes) == {"truncated": 200 * refused_of_ten, "answer": 200 * (10 - refused_of_ten)}


def test_the_longest_rows_may_all_be_refused(run: Run) -> None:
    """They are sent first, so without a spread pilot they would be taken for the whole job."""
    server = Server(lambda number, _: CUT if number >= 1800 else GOOD)
    outcomes = run(engine_of(server).answer(rows(2000)))
    assert kinds(outcomes) == {"truncated": 200, "answer": 1800}


def test_a_pilot_delays_a_healthy_job_by_one_latency_at_most(run: Run) -> None:
    over = Pilot()
    over.answered()
    over.answered()
    seconds, outcomes = run(timed(engine_of(server := Server(lambda *_: GOOD)), rows(2048)))
    without, _ = run(timed(engine_of(Server(lambda *_: GOOD), pilot=over), rows(2048)))
    assert kinds(outcomes) == {"answer": 2048}
    assert server.peak == 64
    assert seconds <= without + LATENCY_SECONDS


@pytest.mark.parametrize(
    "fault", [REFUSED_CONNECTION, RESET, OVERLOADED, DEFECT], ids=["refused", "reset", "503", "500"]
)
@pytest.mark.parametrize("max_in_flight", [8, 64])
def test_a_server_that_is_back_in_a_minute_costs_no_row(run: Run, fault: RequestError, max_in_flight: int) -> None:
    def answer(number: int, seconds: float) -> Answer | Exception:
        return fault if 10 < seconds < 60 else GOOD

    seconds, outcomes = run(timed(engine_of(server := Server(answer), max_in_flight=max_in_flight), rows(1000)))
    assert kinds(outcomes) == {"answer": 1000}
    assert server.sent <= 1000 + 3 * max_in_flight + 20, "the window when it broke, and a probe every few seconds"
    assert seconds <= 1000 / max_in_flight * LATENCY_SECONDS + 50 + 15


@pytest.mark.parametrize("fault", [RESET, OVERLOADED, DEFECT], ids=["reset", "503", "500"])
def test_requests_that_waited_for_the_end_of_an_outage_keep_to_the_quota(run: Run, fault: RequestError) -> None:
    bucket, rejected = Bucket(10.0, 10.0), 0

    class Limited(Server):
        async def complete(self, prompt: Prompt) -> Reply:
            nonlocal rejected
            if bucket.wait_seconds(now()):
                rejected += 1
                raise RequestError("throttled", "too many", http_status=429)
            bucket.take(now())
            return await super().complete(prompt)

    server = Limited(lambda _, seconds: fault if 30 < seconds < 80 else GOOD)
    outcomes = run(engine_of(server, governor=Governor(requests_per_minute=600)).answer(rows(900)))
    assert kinds(outcomes) == {"answer": 900}
    assert rejected <= 5


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_no_attempt_of_a_row_is_used_up_by_a_server_that_cannot_be_reached(run: Run, max_attempts: int) -> None:
    server = Server(lambda _, seconds: REFUSED_CONNECTION if seconds < 50 else GOOD)
    policy = RetryPolicy(max_attempts=max_attempts, max_throttled_seconds=60.0)
    assert kinds(run(engine_of(server, policy=policy).answer(rows(3)))) == {"answer": 3}


@pytest.mark.parametrize("answered_before", [0, 1000])
def test_a_server_that_stays_unreachable_ends_the_job_in_about_a_minute(run: Run, answered_before: int) -> None:
    until = answered_before / 64 * LATENCY_SECONDS
    server = Server(lambda _, seconds: GOOD if seconds < until else REFUSED_CONNECTION)

    async def main() -> float:
        began = now()
        with pytest.raises(ModelUnavailableError, match=r"has not replied for 6\d s: start it") as caught:
            await engine_of(server).answer(rows(5000))
        assert caught.value.retryable
        return now() - began

    assert run(main()) <= until + 75
    assert server.sent <= 1.1 * answered_before + 3 * 64 + 20


@pytest.mark.parametrize("fault", [RESET, OVERLOADED], ids=["reset", "503"])
@pytest.mark.parametrize("answered_before", [0, 1000])
def test_a_server_that_accepts_connections_and_never_replies_leaves_the_rest_unsent(
    run: Run, fault: RequestError, answered_before: int
) -> None:
    until = answered_before / 64 * LATENCY_SECONDS
    server = Server(lambda _, seconds: GOOD if seconds < until else fault)
    seconds, outcomes = run(timed(engine_of(server), rows(5000)))
    assert seconds <= until + 75
    assert server.sent <= 1.1 * answered_before + 3 * 64 + 20
    assert kinds(outcomes)[fault.kind] >= 5000 - 1.1 * answered_before
    assert outcomes[0].message.startswith(
        "not sent, as others before it failed: the server has replied to none for 6"
    )


@pytest.mark.parametrize("fault", [RESET, OVERLOADED, DEFECT], ids=["reset", "503", "500"])
def test_rows_that_always_fail_do_not_end_a_job_of_which_they_are_the_last(run: Run, fault: RequestError) -> None:
    server = Server(lambda number, _: fault if number % 10 == 0 else GOOD)
    assert kinds(run(engine_of(server).answer(rows(400)))) == {"answer": 360, fault.kind: 40}


def test_rows_with_internal_errors_make_the_last_of_one_batch_wait_and_of_no_other(run: Run) -> None:
    server = Server(lambda number, _: DEFECT if number % 10 == 0 else GOOD)

    async def main() -> list[float]:
        engine, took = engine_of(server), []
        for _ in range(5):
            seconds, outcomes = await timed(engine, rows(400))
            assert kinds(outcomes) == {"answer": 360, "server_error": 40}
            took.append(seconds)
        return took

    first, *others = run(main())
    assert first <= 400 / 64 * LATENCY_SECONDS + Outage.LONGEST_SECONDS + 30
    assert max(others) <= 400 / 64 * LATENCY_SECONDS + 30


def test_after_an_outage_that_ended_the_job_nothing_is_sent_by_its_other_batches(run: Run) -> None:
    server, outage = Server(lambda *_: REFUSED_CONNECTION), Outage()

    async def main() -> int:
        with pytest.raises(ModelUnavailableError):
            await engine_of(server, outage=outage).answer(rows(100))
        sent = server.sent
        with pytest.raises(ModelUnavailableError, match="start it, or correct"):
            await engine_of(server, outage=outage).answer(rows(100))
        return server.sent - sent

    assert run(main()) == 0


def test_one_row_that_breaks_its_connections_fails_alone(run: Run) -> None:
    server = Server(lambda number, _: RESET if number == 7 else GOOD)
    assert kinds(run(engine_of(server).answer(rows(300)))) == {"answer": 299, "connection": 1}


def test_a_last_row_that_breaks_its_connections_fails_alone(run: Run) -> None:
    server = Server(lambda *_: RESET)
    assert kinds(run(engine_of(server).answer(rows(1)))) == {"connection": 1}


def test_a_server_with_a_defect_for_every_row_gets_only_the_pilot(run: Run) -> None:
    server = Server(lambda *_: DEFECT)
    assert kinds(run(engine_of(server).answer(rows(5000)))) == {"server_error": 5000}
    assert server.sent <= 32 * 5
