from __future__ import annotations

import asyncio

import pytest

from airflow_provider_llmbeam.engine.pacing.gate import Gate, Slots
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.pacing.rejection import Rejection


def test_a_retry_is_admitted_before_first_attempts_that_wait(run):
    async def scenario() -> list[str]:
        gate, order = Gate(Governor(requests_per_minute=60), asyncio.get_running_loop().time), []

        async def go(name: str, is_retry: bool) -> None:
            await gate.wait_for_admission(lambda: 1, is_retry=is_retry)
            order.append(name)

        fresh = [asyncio.create_task(go(f"fresh {number}", False)) for number in range(5)]
        await asyncio.sleep(1.5)
        retry = asyncio.create_task(go("retry", True))
        await asyncio.gather(retry, *fresh)
        assert gate.waited_seconds == pytest.approx(5, abs=1)
        return order

    order = run(scenario())
    assert order.index("retry") <= 3
    assert [name for name in order if name != "retry"] == [f"fresh {number}" for number in range(5)]


def test_a_request_learns_how_long_it_has_waited(run):
    async def scenario() -> list[float]:
        gate = Gate(Governor(requests_per_minute=60), asyncio.get_running_loop().time)
        return [(await gate.wait_for_admission(lambda: 1, is_retry=False))[1] for _ in range(5)]

    first, *_, last = run(scenario())
    assert first == 0.0
    assert last == pytest.approx(1.0, abs=0.1)


class Tested:
    """Holds all requests until a 429, which it tests with the next one."""

    is_rejected = False

    def admit(self, now: float, tokens: float, backlog: float = 0.0) -> float:
        return 0.0 if self.is_rejected else 60.0

    def settle(self, reserved_tokens: float, used_tokens: float, *, is_answered: bool = False) -> None: ...

    def rejected(self, now: float, *_: object) -> float:
        self.is_rejected = True
        return 0.0


def test_a_429_that_holds_nothing_releases_the_requests_that_wait(run):
    async def scenario() -> float:
        gate = Gate(Tested(), asyncio.get_running_loop().time)
        assert gate.rejected(Rejection(sent_at=0.0)) == 0.0
        gate.governor.is_rejected = False
        waiting = asyncio.create_task(gate.wait_for_admission(lambda: 1, is_retry=False))
        await asyncio.sleep(0)
        gate.rejected(Rejection(sent_at=0.0))
        return (await waiting)[1]

    assert run(scenario()) < Gate.LONGEST_WAIT_SECONDS


def test_the_first_answers_of_a_server_that_hung_do_not_delay_the_next_requests(run):
    async def scenario() -> float:
        gate = Gate(Governor(), asyncio.get_running_loop().time)
        for _ in range(2):
            gate.answered(1500.0, 2)
        waited = [(await gate.wait_for_admission(lambda: 1, is_retry=False))[1] for _ in range(10)]
        return sum(waited)

    assert 0 < run(scenario()) <= 10 * Gate.MAX_SPACING_SECONDS


def test_release_all_releases_every_waiter(run):
    async def scenario() -> float:
        clock = asyncio.get_running_loop().time
        gate = Gate(Governor(requests_per_minute=1), clock)
        waiting = [
            asyncio.create_task(gate.wait_for_admission(lambda: 1, is_retry=number % 2 > 0))
            for number in range(20)
        ]
        await asyncio.sleep(0.5)
        waiting[-1].cancel()
        gate.release_all()
        began = clock()
        await asyncio.wait(waiting)
        return clock() - began

    assert run(scenario()) == 0


def test_a_request_that_arrives_after_the_end_does_not_wait_and_waits_if_sending_goes_on(run):
    """E.g. one that waited for the end of an outage which has ended the job; a budget may begin anew."""

    async def scenario() -> tuple[float, float]:
        ended = True
        gate = Gate(Governor(requests_per_minute=1), asyncio.get_running_loop().time, lambda: ended)
        first = (await gate.wait_for_admission(lambda: 1, is_retry=True))[1]
        ended = False
        await gate.wait_for_admission(lambda: 1, is_retry=False)
        return first, (await gate.wait_for_admission(lambda: 1, is_retry=True))[1]

    assert run(scenario()) == (0.0, 60.0)


def test_slots_in_use_never_exceed_the_current_limit(run):
    async def scenario() -> None:
        limit, taken, peaks = 4, 0, []
        slots = Slots(lambda: limit)

        async def work() -> None:
            nonlocal taken
            async with slots:
                taken += 1
                peaks.append((taken, limit))
                await asyncio.sleep(1)
                taken -= 1

        first = [asyncio.create_task(work()) for _ in range(12)]
        await asyncio.sleep(0.5)
        limit = 2
        await asyncio.gather(*first)
        assert max(peak for peak, at in peaks if at == 2) == 2
        limit = 6
        await asyncio.gather(*(work() for _ in range(12)))
        assert max(peak for peak, _ in peaks) == 6
        assert taken == 0
        assert len(peaks) == 24

    run(scenario())


def test_a_cancelled_waiter_uses_no_admission(run):
    async def scenario() -> int:
        slots, done = Slots(lambda: 1), 0

        async def work() -> None:
            nonlocal done
            async with slots:
                await asyncio.sleep(1)
                done += 1

        tasks = [asyncio.create_task(work()) for _ in range(4)]
        await asyncio.sleep(0.5)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return done

    assert run(scenario()) == 3


def test_spreading_over_the_latency_does_not_count_as_throttling(run):
    async def scenario() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        gate = Gate(Governor(requests_per_minute=60_000), loop.time)
        gate.answered(latency_seconds=2.1, max_in_flight=40)
        started = loop.time()
        await asyncio.gather(*(gate.wait_for_admission(lambda: 1, is_retry=False) for _ in range(11)))
        return loop.time() - started, gate.waited_seconds

    # Both are of the clock of `run`, which is simulated, so that they do not depend on the machine.
    assert run(scenario()) == pytest.approx((0.48, 0.0), abs=1e-6)


def test_a_waiting_request_reserves_what_is_known_when_it_is_sent(run):
    async def scenario() -> list[tuple[float, float]]:
        gate, known = Gate(Governor(requests_per_minute=60), asyncio.get_running_loop().time), [256.0]
        waiting = [
            asyncio.create_task(gate.wait_for_admission(lambda: known[-1], is_retry=False)) for _ in range(2)
        ]
        await asyncio.sleep(0.5)
        known.append(5.0)
        return await asyncio.gather(*waiting)

    assert [tokens for tokens, _ in run(scenario())] == [256.0, 5.0]
