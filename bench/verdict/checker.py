"""Decides whether a history keeps the promises: `python -m bench.verdict.checker HISTORY.json …`.

Imports nothing of the package and nothing of the sandbox: what it compares are the rows of the source, the bill of
the server, the output as a stranger reads it, and the times of the kills.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.verdict.history import History

#: What a history has to keep.
RULES = {
    "ended": "the job ended well after its last kill",
    "every row once": "each row of the source is once in the output or in the dead letter, and no other row is",
    "answer of its row": "each answer is one that the server computed for the prompt of its row",
    "paid once": "no prompt is paid for twice, except where a kill lies between and its requests were in flight",
    "paid for a row": "each paid request asked the prompt of a row",
    "failed for a reason": "each row of the dead letter was refused by the server",
    "published at one stroke": "at each kill the output had no row or all of them",
    "no GPU outside its run": "each billed second of an accelerator lies within the run",
    "no GPU that was not asked for": "at no moment are more accelerators billed than the run asks for",
}


@dataclass(frozen=True)
class Violation:
    """What a history does not keep.

    Attributes:
        rule: One of `RULES`.
        what: What was found instead.
    """

    rule: str
    what: str


def check(history: History) -> list[Violation]:
    """Returns what a history does not keep; nothing if it keeps all `RULES`."""
    found = [
        *(("ended", history.failure) for _ in range(bool(history.failure))),
        *(("every row once", what) for what in _misplaced(history)),
        *(("answer of its row", what) for what in _wrong_answers(history)),
        *(("paid once", what) for what in _paid_again(history)),
        *(("paid for a row", what) for what in _paid_for_nothing(history)),
        *(("failed for a reason", what) for what in _failed_without_reason(history)),
        *(("published at one stroke", what) for what in _half_published(history)),
        *(("no GPU outside its run", what) for what in _rent_outside(history)),
        *(("no GPU that was not asked for", what) for what in _rent_too_much(history)),
    ]
    return [Violation(rule, what) for rule, what in found]


def paid_again(history: History) -> int:
    """Returns how many answers were paid for again."""
    paid = Counter(request.prompt for request in history.requests if request.is_paid)
    return sum(paid[prompt] - 1 for prompt in {row.prompt for row in history.rows} if paid[prompt] > 1)


def _misplaced(history: History) -> Iterator[str]:
    sources = Counter(row.key for row in history.rows)
    answered, failed = Counter(row.key for row in history.published), Counter(history.dead_letter)
    for key in sorted(sources | answered | failed):
        if (places := answered[key] + failed[key]) != sources[key]:
            found = f"{answered[key]} times in the output and {failed[key]} times in the dead letter"
            yield (
                f"row {key} is {sources[key]} times in the source, and {found}" if places else f"row {key} is lost"
            )


def _wrong_answers(history: History) -> Iterator[str]:
    prompts = {row.key: row.prompt for row in history.rows}
    computed: dict[str, set[str]] = defaultdict(set)
    for request in history.requests:
        if request.is_paid:
            computed[request.answer].add(request.prompt)
    for row in history.published:
        if prompts.get(row.key) not in (asked := computed.get(row.answer, set())):
            whose = sorted(key for key, prompt in prompts.items() if prompt in asked)
            where = f"is that of row {whose[0]}" if whose else "was never computed"
            yield f"the answer of row {row.key}, {row.answer[:60]!r}, {where}"


def _paid_again(history: History) -> Iterator[str]:
    payments: dict[str, list[float]] = defaultdict(list)
    for request in history.requests:
        if request.is_paid:
            payments[request.prompt].append(request.received_at)
    rows = {row.prompt: row.key for row in history.rows}
    explained: Counter[int] = Counter()
    for prompt, key in rows.items():
        used: set[int] = set()
        for earlier, later in pairwise(sorted(payments[prompt])):
            between = [
                n
                for n, kill in enumerate(history.kills)
                if earlier <= kill.until and kill.since <= later and n not in used
            ]
            if not between:
                yield f"the prompt of row {key} was paid for again {later - earlier:.3f} s later, without a kill"
                continue
            used.add(between[0])
            explained[between[0]] += 1
    for n, kill in enumerate(history.kills):
        if explained[n] > kill.in_flight:
            most = f"at most {kill.in_flight} were in flight"
            yield f"{explained[n]} prompts were paid for again after kill {n + 1}, and {most}"


def _paid_for_nothing(history: History) -> Iterator[str]:
    prompts = {row.prompt for row in history.rows}
    others = sum(request.is_paid and request.prompt not in prompts for request in history.requests)
    if others > history.probes:
        yield f"{others} paid requests asked no prompt of a row; expected at most {history.probes}"


def _failed_without_reason(history: History) -> Iterator[str]:
    refused = {request.prompt for request in history.requests if _is_refusal(request.http_status)}
    failed = set(history.dead_letter)
    for row in history.rows:
        if row.key in failed and row.prompt not in refused:
            yield f"row {row.key} is in the dead letter, and the server never refused its prompt"


def _is_refusal(http_status: int | None) -> bool:
    return http_status is not None and 400 <= http_status < 500 and http_status != 429


def _half_published(history: History) -> Iterator[str]:
    whole = len(history.published)
    for n, kill in enumerate(history.kills):
        if kill.published not in (0, whole):
            yield f"at kill {n + 1} the output had {kill.published} of {whole} rows"


def _rent_outside(history: History) -> Iterator[str]:
    for rent in history.rents:
        if rent.until is None:
            yield f"{rent.name} is still billed after the run"
        elif rent.since < history.began_at or rent.until > history.ended_at:
            before, after = max(0.0, history.began_at - rent.since), max(0.0, rent.until - history.ended_at)
            yield f"{rent.name} was billed {before:.3f} s before the run and {after:.3f} s after it"


def _rent_too_much(history: History) -> Iterator[str]:
    for begun in history.rents:
        at_once = [one for one in history.rents if one.since <= begun.since < (one.until or math.inf)]
        if (gpus := sum(one.gpus for one in at_once)) > history.gpus:
            names = ", ".join(sorted({one.name for one in at_once}))
            yield f"{gpus} accelerators of {names} were billed at once, and the run asks for {history.gpus}"


def main(paths: Sequence[str]) -> int:
    """Checks recorded histories, and prints what they do not keep; returns the exit status."""
    failed = False
    for path in paths:
        history = History.read(json.loads(Path(path).read_text()))
        for violation in check(history):
            failed = True
            sys.stdout.write(f"{history.case}: {violation.rule}: {violation.what}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
