"""From the prompt of a message to its answer: asked once, in time, in the order of its conversation."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.engine.token_counts import NO_TOKENS
from airflow_provider_llmbeam.exceptions import BudgetExceededError, JobFailedError
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts
from airflow_provider_llmbeam.pipeline.stream.answers import Answers
from airflow_provider_llmbeam.pipeline.stream.histories import Histories
from airflow_provider_llmbeam.pipeline.stream.journal import PartitionJournal
from airflow_provider_llmbeam.pipeline.stream.order import PartitionOrder
from airflow_provider_llmbeam.pipeline.stream.partition import (
    Message,
    Partition,
    Result,
    Usage,
    finish,
    prepare,
)
from airflow_provider_llmbeam.pipeline.stream.state import StreamCounts
from airflow_provider_llmbeam.pipeline.stream.vectors import AnswerEmbedder, vector_job
from airflow_provider_llmbeam.spec import JobSpec, PostgresSink

SPEC: dict[str, Any] = {
    "name": "stream",
    "source": {"type": "kafka", "topic": "q", "bootstrap_servers": "h:1"},
    "prompt": {"template": "{{ row.text }}"},
    "model": {"type": "echo"},
    "sink": {"type": "kafka", "topic": "a", "bootstrap_servers": "h:1"},
    "state_uri": "/tmp/llmbeam-stream-test/",
}


class FakeEngine:
    """Answers with the texts of the history and the prompt; `held` prompts wait for `release`."""

    def __init__(self, max_instances: int = 1, failure: Failure | None = None) -> None:
        self.max_instances, self.failure = max_instances, failure
        self.asked: list[list[str]] = []
        self.release = asyncio.Event()
        self.release.set()
        self.is_sent_before_release = True

    async def answer(self, prompts, observers=()):
        if not self.is_sent_before_release:
            await self.release.wait()
        for observer in observers:
            observer.sent()
        self.asked.append([prompt.text for prompt in prompts])
        await self.release.wait()
        return [self.failure or self._completion(prompt) for prompt in prompts]

    @staticmethod
    def _completion(prompt) -> Completion:
        return Completion(
            text="|".join([*(turn.text for turn in prompt.history), prompt.text]),
            model="m",
            finish_reason="stop",
            tokens=NO_TOKENS,
            attempts=1,
            latency_seconds=0.1,
            sent_at=1.0,
            answered_at=time.time(),
        )


class FakeWriter:
    """A journal that acknowledges each entry."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.elsewhere: dict[str, Completion] = {}
        self.stored = asyncio.Event()
        self.stored.set()

    async def write(self, place, fingerprint, entry):
        self.entries.append(fingerprint)
        await self.stored.wait()
        return len(self.entries) - 1

    async def find(self, fingerprint):
        return self.elsewhere.get(fingerprint)

    async def close(self):
        pass


class Stream:
    """Answers of one partition."""

    def __init__(self, engine: FakeEngine, guard: Any = None, **changes: Any) -> None:
        self.spec = JobSpec.parse({**SPEC, **changes})
        self.engine, self.writer, self.counts = engine, FakeWriter(), StreamCounts()
        conversation = self.spec.conversation
        self.histories = (
            None if conversation is None else Histories(conversation, self.spec.fingerprinter(), 10**6)
        )
        self.answers = Answers(self.spec, engine, self.writer, self.counts, self.histories, guard)  # type: ignore[arg-type]
        self.partition = Partition(("q", 0), PartitionOrder(0), PartitionJournal())
        self.prompts = RowPrompts(self.spec)
        self.offset = 0

    def message(self, text: str, *, user: str = "u", produced_at: float | None = None) -> Message:
        row = {"text": text, "user": user, "kafka_topic": "q", "kafka_partition": 0, "kafka_offset": self.offset}
        found = Message(self.offset, user.encode(), produced_at, time.time(), self.prompts.prompt_of_row(row))
        self.offset += 1
        return found

    async def ask(self, *messages: Message) -> list[AnsweredRow | FailedRow]:
        return await asyncio.gather(*(self.answers.answer(self.partition, each) for each in messages))


def texts(rows) -> list[str]:
    return [row.completion.text if isinstance(row, AnsweredRow) else row.failure.kind for row in rows]


def test_equal_prompts_of_a_partition_are_asked_once():
    async def main() -> None:
        stream = Stream(FakeEngine())
        rows = await stream.ask(stream.message("a"), stream.message("a"), stream.message("b"))
        assert texts(rows) == ["a", "a", "b"]
        assert [row.origin for row in rows] == ["fresh", "duplicate", "fresh"]
        (later,) = await stream.ask(stream.message("a"))
        assert later.origin == "duplicate"
        assert len(stream.engine.asked) == len(stream.writer.entries) == 2

    asyncio.run(main())


def test_a_message_that_reaches_its_age_before_it_is_sent_is_not_sent():
    async def main() -> None:
        engine = FakeEngine()
        stream = Stream(engine, stream={"max_age_seconds": 0.2})
        assert texts(await stream.ask(stream.message("old", produced_at=time.time() - 1))) == ["too_old"]
        engine.release.clear()
        engine.is_sent_before_release = False  # the governor holds it
        assert texts(await stream.ask(stream.message("held", produced_at=time.time()))) == ["too_old"]
        assert engine.asked == []

    asyncio.run(main())


def test_a_message_that_was_sent_in_time_is_awaited():
    async def main() -> None:
        engine = FakeEngine()
        engine.release.clear()
        stream = Stream(engine, stream={"max_age_seconds": 0.05})
        asked = asyncio.ensure_future(stream.ask(stream.message("a", produced_at=time.time())))
        await asyncio.sleep(0.15)
        engine.release.set()
        assert texts(await asked) == ["a"]

    asyncio.run(main())


def test_a_server_that_takes_several_prompts_gets_what_came_within_the_wait():
    async def main() -> None:
        engine = FakeEngine(max_instances=3)
        stream = Stream(engine, stream={"batch_wait_ms": 20})
        rows = await stream.ask(*map(stream.message, "abcd"))
        assert texts(rows) == [*"abcd"]
        assert engine.asked == [["a", "b", "c"], ["d"]]

    asyncio.run(main())


def test_what_every_other_message_would_meet_ends_the_worker_and_moves_no_position():
    async def main() -> None:
        stream = Stream(FakeEngine(failure=Failure(kind="unauthorized", message="no key")))
        with pytest.raises(JobFailedError, match="no key"):
            await stream.ask(stream.message("a"))

    asyncio.run(main())


def test_a_key_above_its_rate_is_not_sent():
    async def main() -> None:
        stream = Stream(FakeEngine(), limits={"per_key": {"requests_per_minute": 1}})
        rows = await stream.ask(stream.message("a"), stream.message("b"), stream.message("c", user="v"))
        assert texts(rows) == ["a", "throttled", "c"]

    asyncio.run(main())


def test_each_turn_of_a_conversation_sees_the_turns_before_it_committed_or_not():
    async def main() -> None:
        stream = Stream(FakeEngine(), conversation={"key": "user"})
        assert stream.histories is not None
        messages = [stream.message("a"), stream.message("x", user="v"), stream.message("b")]
        for message in messages:
            stream.partition.order.take(message.offset)
        rows = await stream.ask(*messages)
        assert texts(rows) == ["a", "x", "a|b"]
        for message in messages:
            stream.partition.order.settle(message.offset, result_of(message), 1)
        commit = prepare(stream.partition, 9)
        assert commit is not None
        finish(commit, is_committed=True)
        stream.histories.put(("q", 0), commit.states.items(), time.time())
        assert stream.partition.talks == {}
        assert texts(await stream.ask(stream.message("c"))) == ["a|b|c"]
        other = Stream(FakeEngine(), conversation={"key": "user"})  # the next owner, which has read the topic
        assert other.histories is not None
        other.histories.put(("q", 0), commit.states.items(), time.time())
        assert texts(await other.ask(other.message("c"))) == ["a|b|c"]
        other.histories.drop(("q", 0))
        assert texts(await other.ask(other.message("d", user="v"))) == ["d"]
        stream.histories.close()
        other.histories.close()

    asyncio.run(main())


def result_of(message: Message):
    return Result(message, "a", message.key, b"x", usage=Usage(None))


def test_a_turn_that_failed_is_in_no_history():
    async def main() -> None:
        engine = FakeEngine(failure=Failure(kind="timeout", message=""))
        stream = Stream(engine, conversation={"key": "user"})
        assert texts(await stream.ask(stream.message("a"))) == ["timeout"]
        engine.failure = None
        assert texts(await stream.ask(stream.message("b"))) == ["b"]
        assert stream.histories is not None
        stream.histories.close()

    asyncio.run(main())


def judged(unsafe: str) -> Any:
    """A guard that calls texts unsafe that have a word."""

    def ask(prompts) -> Future[list[Completion]]:
        future: Future[list[Completion]] = Future()
        verdicts = ["unsafe\nS1" if unsafe in prompt.text else "safe" for prompt in prompts]
        future.set_result(
            [
                replace(FakeEngine._completion(prompt), text=verdict)
                for prompt, verdict in zip(prompts, verdicts, strict=True)
            ]
        )
        return future

    return ask


@pytest.mark.parametrize(
    ("on", "action", "expected"),
    [
        (["input"], "fail", ["fine", "moderated"]),
        (["output"], "fail", ["fine", "moderated"]),
        (["input"], "replace", ["fine", "no"]),
        (["output"], "replace", ["fine", "no"]),
    ],
)
def test_a_guard_judges_prompts_before_they_are_sent_and_answers_before_they_are_committed(on, action, expected):
    moderation = {"model": {"type": "echo"}, "template": "{text}", "on": on, "action": action}
    if action == "replace":
        moderation["replacement"] = "no"

    async def main() -> None:
        stream = Stream(FakeEngine(), judged("bad"), safety={"moderation": moderation})
        rows = await stream.ask(stream.message("fine"), stream.message("bad"))
        assert texts(rows) == expected
        assert stream.engine.asked == ([["fine"]] if on == ["input"] else [["fine"], ["bad"]])
        assert len(stream.writer.entries) == len(stream.engine.asked) + 2  # verdicts are paid, too

    asyncio.run(main())


def failing(*errors: Exception | Failure) -> Any:
    """A guard that fails so often, and then calls every text safe."""
    left, safe = list(errors), judged("nothing")

    def ask(prompts) -> Future[list[Any]]:
        if not left:
            return safe(prompts)
        future: Future[list[Any]] = Future()
        if isinstance(error := left.pop(0), Exception):
            future.set_exception(error)
        else:
            future.set_result([error])
        return future

    return ask


MODERATION = {"model": {"type": "echo"}, "template": "{text}", "on": ["output"], "action": "fail"}


def test_a_guard_whose_budget_begins_anew_is_asked_again_then_and_else_the_worker_ends():
    async def main() -> None:
        spent = BudgetExceededError("spent")
        spent.renewed_at = time.time() + 0.1
        stream = Stream(FakeEngine(), failing(spent), safety={"moderation": MODERATION})
        assert texts(await stream.ask(stream.message("fine"))) == ["fine"]
        assert time.time() >= spent.renewed_at
        stream = Stream(FakeEngine(), failing(BudgetExceededError("spent")), safety={"moderation": MODERATION})
        with pytest.raises(BudgetExceededError):
            await stream.ask(stream.message("fine"))

    asyncio.run(main())


def test_a_guard_that_refuses_the_key_ends_the_worker_and_no_answer_is_lost():
    async def main() -> None:
        refused = failing(Failure(kind="unauthorized", message="revoked"))
        stream = Stream(FakeEngine(), refused, safety={"moderation": MODERATION})
        with pytest.raises(JobFailedError, match="revoked"):
            await stream.ask(stream.message("fine"))
        assert len(stream.writer.entries) == 1, "the answer is recorded"

    asyncio.run(main())


def test_personal_data_is_masked_for_the_model_and_restored_in_the_answer(monkeypatch):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "k" * 32)

    async def main() -> None:
        stream = Stream(FakeEngine(), safety={"privacy": {}})
        text = "write to ada@example.com"
        assert texts(await stream.ask(stream.message(text))) == [text]
        ((asked,),) = stream.engine.asked
        assert "ada@example.com" not in asked

    asyncio.run(main())


class Altering(FakeEngine):
    """Alters the placeholders of its first answers, and those of a text with `twice` in the repair, too."""

    @staticmethod
    def _completion(prompt) -> Completion:
        text, *repair = prompt.text.split("\n\nAn earlier answer")
        is_altered = not repair or "twice" in text
        answer = FakeEngine._completion(prompt)
        return replace(answer, text=text.lower() if is_altered else text, cost_nano_usd=7)


@pytest.mark.parametrize(
    ("on_altered", "expected", "asked"),
    [
        ("keep", ["write to <email_", "twice to <email_"], 2),
        ("fail", ["invalid_output", "invalid_output"], 2),
        ("repair", ["write to ada@example.com", "invalid_output"], 4),
    ],
)
def test_an_answer_with_an_altered_placeholder_is_kept_refused_or_asked_for_once_more(
    monkeypatch, on_altered, expected, asked
):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "k" * 32)

    async def main() -> None:
        stream = Stream(Altering(), safety={"privacy": {"on_altered": on_altered}})
        first, second = [stream.message(f"{word} to ada@example.com") for word in ("write", "twice")]
        rows = await stream.ask(first, second)
        assert [text.partition("_")[0] for text in texts(rows)] == [text.partition("_")[0] for text in expected]
        assert len(stream.engine.asked) == len(stream.writer.entries) == asked
        assert len(first.fingerprints) == asked / 2  # their tombstones go with the position
        costs = [(row.completion if isinstance(row, AnsweredRow) else row.failure).cost_nano_usd for row in rows]
        assert sum(map(int, costs)) == stream.counts.cost_nano_usd == 7 * asked
        (again,) = await stream.ask(stream.message("write to ada@example.com"))
        assert len(stream.engine.asked) == asked, "what is paid is asked no more"
        assert texts([again]) == texts(rows[:1])

    asyncio.run(main())


def test_the_audit_has_a_record_of_each_request(tmp_path):
    async def main() -> None:
        stream = Stream(FakeEngine(), safety={"audit": {"uri": str(tmp_path)}})
        await stream.ask(stream.message("a"), stream.message("a"))
        (file,) = tmp_path.rglob("*.jsonl")
        (record,) = map(json.loads, file.read_text().splitlines())  # there before the journal has the answer
        assert record["model"] == "m"
        assert len(record["row_key_hashes"]) == 1
        stream.answers.close()

    asyncio.run(main())


def test_an_answer_that_another_process_has_recorded_is_not_asked_again():
    async def main() -> None:
        stream = Stream(FakeEngine())
        message = stream.message("a")
        stream.writer.elsewhere = {message.prompt.fingerprint: FakeEngine._completion(message.prompt.prompt)}
        (row, again) = await stream.ask(message, stream.message("a"))
        assert (row.origin, again.origin) == ("resumed", "resumed")
        assert stream.engine.asked == stream.writer.entries == []
        assert stream.counts.resumed == 2

    asyncio.run(main())


class FakeThread:
    """An engine that makes vectors of three numbers."""

    max_instances = 2

    def __init__(self, failure: Failure | None = None) -> None:
        self.asked: list[list[str]] = []
        self.failure = failure

    def submit(self, prompts):
        self.asked.append([prompt.text for prompt in prompts])
        done: Future[list[Any]] = Future()
        vector = replace(FakeEngine._completion(prompts[0]), text="", parsed=[1.0, 2.0, 3.0])
        done.set_result([self.failure or vector] * len(prompts))
        return done


def embedding_stream(thread: FakeThread, field: str = "answer") -> Stream:
    embed = {"model": {"type": "openai", "name": "m", "base_url": "http://127.0.0.1:1/v1"}, "field": field}
    stream = Stream(FakeEngine())
    sink = PostgresSink(type="postgres", table="t", embed=embed)
    job = vector_job(stream.spec, sink, sink.embed)
    stream.answers._vectors = [AnswerEmbedder(job, thread, 0.01)]
    return stream


@pytest.mark.parametrize(("field", "texts"), [("answer", ["a", "b"]), ("user", ["u"])])
def test_each_answer_has_a_vector_which_is_asked_once_and_journaled(field, texts):
    async def main() -> None:
        thread = FakeThread()
        stream = embedding_stream(thread, field)
        messages = [stream.message(text) for text in "aab"]
        rows = await stream.ask(*messages)
        assert [row.completion.text for row in rows] == ["a", "a", "b"]
        assert [each.vectors[0].completion.parsed for each in messages] == [[1.0, 2.0, 3.0]] * 3
        assert sorted(text for batch in thread.asked for text in batch) == texts
        assert len(stream.writer.entries) == 2 + len(texts)
        assert stream.counts.embedded == len(texts)
        assert len(messages[0].fingerprints) == 2

    asyncio.run(main())


def test_an_answer_without_a_vector_is_of_the_dead_letter_with_the_reason():
    async def main() -> None:
        failure = Failure(kind="bad_request", message="too long")
        (row,) = await (stream := embedding_stream(FakeThread(failure))).ask(stream.message("a"))
        assert (row.failure.kind, row.failure.message) == ("bad_request", "the vector of the answer: too long")
        (row,) = await (stream := embedding_stream(FakeThread(), "absent")).ask(stream.message("a"))
        assert row.failure.kind == "not_stored"
        unauthorized = Failure(kind="unauthorized", message="no key")
        stream = embedding_stream(FakeThread(unauthorized))
        with pytest.raises(JobFailedError, match="no key"):
            await stream.ask(stream.message("a"))

    asyncio.run(main())


async def passes(condition) -> None:
    """Waits until a condition holds."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError


def test_a_prompt_at_the_guard_is_awaited_by_a_worker_that_ends_and_a_judged_one_that_is_not_sent_is_not():
    verdict: Future[list[Completion]] = Future()
    moderation = {"model": {"type": "echo"}, "template": "{text}", "on": ["input"], "action": "fail"}

    async def main() -> None:
        engine = FakeEngine()
        stream = Stream(engine, lambda prompts: verdict, safety={"moderation": moderation})
        engine.release.clear()
        engine.is_sent_before_release = False  # the governor holds it
        message = stream.message("a")
        asked = asyncio.ensure_future(stream.ask(message))
        await passes(lambda: message.is_sent)
        stream.writer.stored.clear()
        (question,) = stream.partition.asked
        verdict.set_result([replace(FakeEngine._completion(message.prompt.prompt), text="safe")])
        await passes(lambda: stream.writer.entries == [question])
        assert message.is_sent, "its entry is not stored yet"
        stream.writer.stored.set()
        await passes(lambda: not message.is_sent)
        engine.release.set()
        assert texts(await asked) == ["a"]
        assert message.is_sent

    asyncio.run(main())


def test_the_vector_of_a_resumed_answer_is_awaited_by_a_worker_that_ends():
    async def main() -> None:
        thread = FakeThread()
        thread.submit = lambda prompts: Future()  # type: ignore[method-assign]
        stream = embedding_stream(thread)
        message = stream.message("a")
        stream.writer.elsewhere = {message.prompt.fingerprint: FakeEngine._completion(message.prompt.prompt)}
        asked = asyncio.ensure_future(stream.ask(message))
        await passes(lambda: message.is_sent)
        assert stream.counts.resumed == 1
        asked.cancel()

    asyncio.run(main())
