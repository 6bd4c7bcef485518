"""Stream workers between a real broker and a model server, while they are killed."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sessions
from kafka_broker import Broker, create_topics
from llmbeam_sandbox import Latency, ModelSettings, Quota, Sandbox
from llmbeam_sandbox.models.answers import prompt_sha256
from waiting import scaled, until

from bench.stream.plan import AWAY_SECONDS, Step
from bench.stream.verdict import Evidence, Seen, Sent

QUESTIONS, ANSWERS, JOURNAL, DEAD_LETTER = "questions", "answers", "journal", "dead-letter"
METRICS, WINDOW_SECONDS = "metrics", 2
_NUMBER = re.compile(r"message (\d+)")
#: What a worker prints once it has partitions.
_JOINED = re.compile(r"assigned\W+[1-9]")
#: What follows the text in the prompt, before and after an upgrade.
PROMPTS = ("", " Be brief.")
#: Longest time without another answer at the end, when all workers answer, in seconds.
_STALL_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a trial is set up.

    Attributes:
        partitions: Partitions of the topics.
        keys: Number of different keys.
        rate: Messages per second.
        latency: Latency of the model server.
        commit_interval_ms: `stream.commit_interval_ms`.
        program: What a worker runs, before `--spec`.
        seed: Seed of the keys.
        requests_per_minute: Quota of the model server, which the job states; `None` for none.
        own_machines: Whether each worker is a machine of its own, as far as it shares a governor.
        job: Further fields of the job.
        stream: Further fields of its `stream`.
    """

    partitions: int = 4
    keys: int = 40
    rate: float = 60.0
    latency: Latency = field(default_factory=lambda: Latency(mean_seconds=0.2, sigma=0.4))
    commit_interval_ms: int = 200
    program: Sequence[str] = ("-m", "airflow_provider_llmbeam.pipeline")
    seed: int = 0
    requests_per_minute: int | None = None
    own_machines: bool = False
    job: Mapping[str, Any] = field(default_factory=dict)
    stream: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Trial:
    """A trial, as a context manager that ends all that it has started, the broker apart.

    Args:
        setting: How it is set up.
        broker: The broker, which runs, and has none of the topics.
        directory: Folder of specs and logs.
    """

    setting: Setting
    broker: Broker
    directory: Path
    seen: list[Seen] = field(default_factory=list)
    keys: dict[int, str] = field(default_factory=dict)
    produced: dict[int, float] = field(default_factory=dict)
    done: list[tuple[float, str]] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    undrained: list[str] = field(default_factory=list)

    def __enter__(self) -> Trial:
        self._stack = ExitStack()
        quota = Quota(requests_per_minute=self.setting.requests_per_minute)
        settings = ModelSettings(latency=self.setting.latency, quota=quota)
        self._sandbox = self._stack.enter_context(Sandbox(models=settings))
        self._prompt = PROMPTS[0]
        self.url = self._sandbox.url
        create_topics(self.broker.servers, self.setting.partitions, QUESTIONS, ANSWERS, DEAD_LETTER, METRICS)
        # The broker's own time: that of a producer is earlier than the moment from which others see the record.
        config = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
        create_topics(self.broker.servers, self.setting.partitions, JOURNAL, config=config)
        self.workers: dict[int, sessions.Leader] = {}
        self._logs: dict[int, Path] = {}
        self._starts = itertools.count()
        self._stack.callback(self._remove_all)
        self._is_begun, self._is_produced, self._is_over = (threading.Event() for _ in range(3))
        for run in (self._produce, self._read):
            thread = threading.Thread(target=run, name=run.__name__)
            thread.start()
            self._stack.callback(thread.join)
        self._stack.callback(self._is_begun.set)
        self._stack.callback(self._is_over.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, steps: Iterable[Step], seconds_after: float = 3.0) -> Evidence:
        """Runs two workers, does the steps, and waits until all messages are answered.

        Args:
            steps: What happens.
            seconds_after: Time for which messages come after the last step, in seconds.
        """
        for member in (0, 1):
            self.start(member)
        self.await_partitions()
        self.do(steps)
        self.await_partitions()
        time.sleep(seconds_after)
        self.finish()
        for member in [*self.workers]:
            self.end(member)
        return self.evidence()

    def do(self, steps: Iterable[Step]) -> None:
        """Does steps."""
        for step in steps:
            if step.awaits_answers:
                self.await_partitions()
            time.sleep(step.pause)
            self._do(step)

    def finish(self) -> None:
        """Ends the messages, and waits until all are answered, or there is no progress."""
        self._is_produced.set()
        self._await_answers()

    def start(self, member: int) -> None:
        """Starts a worker."""
        spec, given = self.directory / "job.json", self.directory / f"input-{member}.json"
        spec.write_text(json.dumps(self.spec()))
        given.write_text(json.dumps({"member": f"w{member}"}))
        self.launch(member, [*self.setting.program, "--spec", spec, "--step", "stream", "--input", given])

    def launch(self, member: int, arguments: Sequence[str | Path]) -> None:
        """Starts a program of Python as a worker; its output has `assigned 4` once it has partitions."""
        path = self.directory / f"worker-{member}-{next(self._starts)}.log"
        self._logs[member] = path
        with path.open("wb") as log:
            command = [sys.executable, *arguments]
            self.workers[member] = sessions.start(command, stdout=log, stderr=log, env=self._environment(member))

    def _environment(self, member: int) -> dict[str, str]:
        if not self.setting.own_machines:
            return environment()
        (folder := self.directory / f"machine-{member}").mkdir(exist_ok=True)
        client = json.dumps({"client.id": folder.name})
        return environment() | {"LLMBEAM_SHARED_TMPDIR": str(folder), "LLMBEAM_KAFKA_SOURCE_CONFIG": client}

    def kill(self, member: int) -> None:
        """Ends a worker with kill -9, and all that it has started."""
        self._note("kill")
        self._remove(member)
        self._note("killed")  # until then it goes on: its processes are searched first

    def end(self, member: int) -> None:
        """Has a worker drain and end."""
        worker = self.workers[member]
        self._note("leave")
        worker.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            worker.wait(scaled(60))
        if worker.returncode != 0:
            self.undrained.append(f"worker {member} ended with {worker.returncode} after SIGTERM\n{self.logs()}")
        self._remove(member)

    def _remove_all(self) -> None:
        for member in [*self.workers]:
            self._remove(member)

    def _remove(self, member: int) -> None:
        worker = self.workers.pop(member)
        sessions.kill([worker])
        worker.wait()

    def spec(self) -> dict[str, Any]:
        """Returns the job."""
        servers = self.broker.servers
        return {
            "name": "trial",
            "source": {"type": "kafka", "topic": QUESTIONS, "bootstrap_servers": servers},
            "prompt": f"{{{{ row.text }}}}{self._prompt}",
            "model": {"type": "openai", "name": "sandbox-model", "base_url": f"{self.url}/v1"},
            "limits": {"max_in_flight": 64, "requests_per_minute": self.setting.requests_per_minute},
            "sink": {"type": "kafka", "topic": ANSWERS, "bootstrap_servers": servers},
            "state_uri": str(self.directory / "state"),
            "stream": {
                "journal_topic": JOURNAL,
                "dead_letter_topic": DEAD_LETTER,
                "metrics_topic": METRICS,
                "window_seconds": WINDOW_SECONDS,
                "group_id": "trial",
                "report_seconds": 1,
                "commit_interval_ms": self.setting.commit_interval_ms,
                **self.setting.stream,
            },
            **self.setting.job,
        }

    def evidence(self) -> Evidence:
        """Returns what reader, server and journal have seen."""
        hashes = {
            prompt_sha256(text_of(number, key) + prompt): (number, version)
            for number, key in self.keys.items()
            for version, prompt in enumerate(PROMPTS)
        }
        requests: dict[int, list[Sent]] = {}
        for record in self._sandbox.requests:
            if record.prompt_sha256 in hashes and record.http_status != 429:  # which costs nothing
                number, version = hashes[record.prompt_sha256]
                requests.setdefault(number, []).append(Sent(record.received_at, record.answered_at, version))
        return Evidence(
            keys=self.keys,
            seen=self.seen,
            requests={number: sorted(sent, key=lambda each: each.at) for number, sent in requests.items()},
            journaled=self._journaled(),
            disturbances=[at for at, _ in self.done],
            kills=[at for at, deed in self.done if deed == "kill"],
            outages=self.outages,
            undrained=self.undrained,
        )

    def asked(self) -> list[tuple[float, bool]]:
        """Returns when the model server got each request, and whether it answered with 429."""
        return sorted((each.received_at, each.http_status == 429) for each in self._sandbox.requests)

    def last_counts(self, member: int) -> dict[str, Any]:
        """Returns the last line of counts of a worker; empty before the first one."""
        lines = [line for line in self._logs[member].read_text().splitlines() if line.startswith('{"at"')]
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        return found

    def logs(self) -> str:
        """Returns the last lines of the workers."""
        paths = [*self._logs.values()]
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-2000:]}" for path in paths)

    def _do(self, step: Step) -> None:
        match step.deed:
            case "kill":
                self.kill(step.member)
                time.sleep(step.down)
                self.start(step.member)
            case "leave":
                self.end(step.member)
                time.sleep(AWAY_SECONDS)
                self._note("join")
                self.start(step.member)
            case "join":
                self._note("join")
                self.start(2)
                time.sleep(AWAY_SECONDS)
                self.end(2)
            case "grow":
                self._note("join")
                self.start(step.member)
                self.await_partitions()
            case "shrink":
                self.await_partitions()  # a process that has not begun has nothing to drain
                self.end(step.member)
                self.await_partitions()
            case "upgrade":
                self.await_partitions()
                self._prompt = PROMPTS[1]
                for member in sorted(self.workers):
                    self.end(member)
                    self._note("join")
                    self.start(member)
                    self.await_partitions()  # as a rolling update waits for /readyz
            case "broker":
                self._note("broker")
                began_at = time.time()
                self.broker.kill()
                self.broker.start()
                self._note("broker")
                self.await_partitions()
                self.outages.append((began_at, time.time() + AWAY_SECONDS))

    def _note(self, deed: str) -> None:
        self.done.append((time.time(), deed))

    def await_partitions(self) -> None:
        """Waits until all workers have partitions, when messages begin, and all of these have another answer."""
        until(lambda: all(map(self._has_joined, self.workers)), self.logs, 90)
        self._is_begun.set()
        begun = self.done[-1][0] if self.done else 0.0

        def are_answered() -> bool:
            answered = {each.partition for each in self.seen[-2000:] if each.at > begun}
            return len(answered) == self.setting.partitions

        until(are_answered, self.logs, 90)

    def await_assignment(self, least: int) -> None:
        """Begins the messages, and waits until each worker has so many partitions, and all have one."""
        self._is_begun.set()

        def are_assigned() -> bool:
            counts = [self.last_counts(member).get("assigned") or 0 for member in self.workers]
            return min(counts) >= least and sum(counts) == self.setting.partitions

        until(are_assigned, self.logs, 90)

    def _has_joined(self, member: int) -> bool:
        return _JOINED.search(self._logs[member].read_text()) is not None

    def _await_answers(self) -> None:
        numbers = set(self.keys)
        moved_at, count = time.monotonic(), 0
        while numbers - {each.number for each in self.seen}:
            if len(self.seen) > count:
                moved_at, count = time.monotonic(), len(self.seen)
            if time.monotonic() - moved_at > _STALL_SECONDS:
                return
            time.sleep(0.5)
        time.sleep(2)  # for repetitions

    def _produce(self) -> None:
        from confluent_kafka import Producer

        chance = random.Random(self.setting.seed)
        # Without idempotence a repeated request may change the order of messages.
        own = {"linger.ms": 1, "enable.idempotence": True, "log_level": 0, **RECOVERY}
        producer = Producer({"bootstrap.servers": self.broker.servers, **own})
        self._is_begun.wait()
        begun, number = time.monotonic(), 0
        while not self._is_produced.is_set() and not self._is_over.is_set():
            key = f"user {chance.randrange(self.setting.keys)}"
            self.keys[number] = key
            self.produced[number] = time.time()
            producer.produce(QUESTIONS, json.dumps({"text": text_of(number, key)}), key)
            producer.poll(0)
            number += 1
            time.sleep(max(0.0, begun + number / self.setting.rate - time.monotonic()))
        producer.flush(60)

    def _read(self) -> None:
        for at, record in read_committed(self.broker.servers, ANSWERS, self._is_over):
            answer = json.loads(record.value())["answer"]
            number = int(_NUMBER.findall(answer)[0])
            key = self.keys[number]
            self.seen.append(Seen(at=at, number=number, key=key, partition=record.partition()))

    def _journaled(self) -> Mapping[int, float]:
        """Returns when the broker took the first record of each message; nothing is compacted within minutes."""
        found: dict[int, float] = {}
        is_over = threading.Event()
        for _, record in read_committed(
            self.broker.servers, JOURNAL, is_over, ends=True, **{"isolation.level": "read_uncommitted"}
        ):
            value = record.value()
            if value is not None and (numbers := _NUMBER.findall(value.decode(errors="replace"))):
                found.setdefault(int(numbers[0]), record.timestamp()[1] / 1000)
        return found


#: See `pipeline.queues.kafka_client`: with its default a client may hang after a restart of the only broker.
RECOVERY = {"metadata.recovery.strategy": "none"}


def read_committed(
    servers: str, topic: str, is_over: threading.Event, *, ends: bool = False, **settings: Any
) -> Iterable[tuple[float, Any]]:
    """Yields the records of a topic that are committed, each with the time at which it was visible.

    Args:
        servers: Address of the broker.
        topic: The topic.
        is_over: Ends it.
        ends: Whether it ends at the end of the topic, too.
        settings: Further settings of the client.
    """
    from confluent_kafka import Consumer, TopicPartition

    own = {"group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer(
        {"bootstrap.servers": servers, "isolation.level": "read_committed", **own, **RECOVERY, **settings}
    )
    parts = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, part, 0) for part in parts])
    left = set(parts)
    try:
        while not is_over.is_set() and (left or not ends):
            for record in consumer.consume(500, 0.02):
                error = record.error()
                if error is None:
                    yield time.time(), record
                elif error.name() == "_PARTITION_EOF":
                    left.discard(record.partition())
    finally:
        consumer.close()


def text_of(number: int, key: str) -> str:
    """Returns the text of a message, with which the answer of the sandbox begins."""
    return f"message {number} of {key}"


def environment() -> dict[str, str]:
    """Returns the environment of a worker: this one, with the package's source and the scripts."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENAI_API_KEY": "trial"}
