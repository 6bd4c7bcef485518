"""Shows the stream worker: a broker of Kafka, a worker that is killed once, and the counts."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kafka_broker import Broker, fetch_jars
from llmbeam_sandbox import Latency
from waiting import scaled

from bench.stream.trial import ANSWERS, QUESTIONS, Setting, Trial
from bench.stream.verdict import judge

#: Time for which questions come before and after the kill, in seconds, and longest time until answers come again.
_SECONDS, _AGAIN_SECONDS = 8.0, 60.0
_SETTING = Setting(rate=3.0, keys=4, latency=Latency(mean_seconds=0.5, sigma=0.3))


def main() -> int:
    """Returns 0 if each question was answered once."""
    try:
        jars = fetch_jars()
    except RuntimeError as error:
        print(f"The demo needs a broker of Kafka: {error}")
        return 1
    with tempfile.TemporaryDirectory(prefix="llmbeam-demo-", ignore_cleanup_errors=True) as folder:
        (own := Path(folder, "broker")).mkdir()
        with Broker(jars, own) as broker, Trial(_SETTING, broker, Path(folder)) as trial:
            _fact("Kafka", f"{broker.servers}, a real broker: topics {QUESTIONS!r} and {ANSWERS!r}")
            _fact("Sandbox", f"{trial.url} (emulated model, half a second for each answer)")
            _fact("Questions", f"{_SETTING.rate:.0f} per second, of {_SETTING.keys} users")
            trial.start(0)
            _fact("Worker", "llmbeam stream job.json starts\n")
            trial.await_assignment(_SETTING.partitions)
            _follow(trial, _SECONDS)
            trial.kill(0)
            print("\n  kill -9 of the worker, with requests in flight; another one starts\n", flush=True)
            killed_at = time.time()
            trial.start(0)
            _follow(trial, _SECONDS)
            trial.finish()
            trial.end(0)
            verdict = judge(trial.evidence())
            again_at = min(each.at for each in trial.seen if each.at > killed_at + 0.5)
    once = verdict.messages - verdict.missing - verdict.repeated
    print()
    _fact("Questions", f"{verdict.messages} = {once} answered once + {verdict.missing} lost")
    _fact("Twice", f"{verdict.repeated} answers; {verdict.disordered} out of the order of their user")
    _fact("Paid again", f"{verdict.paid_twice} of the {verdict.unrecorded} that were in flight at the kill")
    _fact("Down", f"{again_at - killed_at:.1f} s, the start of the new process included")
    print("\nNext: docs/stream.md")
    return int(bool(verdict.faults))


def _follow(trial: Trial, seconds: float) -> None:
    """Prints answers as they become visible, for some seconds after the next one."""
    shown, limit = len(trial.seen), time.monotonic() + scaled(_AGAIN_SECONDS)
    end = limit
    while time.monotonic() < min(end, limit):
        for seen in trial.seen[shown:]:
            end = min(end, time.monotonic() + seconds)
            after = seen.at - trial.produced[seen.number]
            print(f"  {seen.key}: answer to question {seen.number}, {after:.1f} s after it", flush=True)
            shown += 1
        time.sleep(0.1)


def _fact(name: str, value: str) -> None:
    print(f"{name:14} {value}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
