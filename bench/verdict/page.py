"""The verdict of all histories, and its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.verdict.checker import RULES, check, paid_again
from bench.verdict.history import History

_PAGE = """# Evidence: killed jobs, judged by their bill

For whoever has to decide whether to trust a release. `scripts/bench verdict --seed {seed} --page` has written this
page: it kills jobs at seeded moments, and a checker that shares no code with the package compares source, output,
dead letter and bill.

{date}, commit `{commit}`; {system}, Python {python}, {cores} cores ({speed}); {minutes:.1f} min.

| | |
|---|---|
| cases | {cases}: {axes} |
| kills | {kills}, each after a drawn number of billed answers |
| rows | {rows:,}, of which {refused:,} were refused by the server and are in the dead letter |
| paid requests | {paid:,}, of them {again} again after a kill, when up to {in_flight:,} were in flight |
| seconds of accelerators | {gpu_seconds:.1f}, all inside their run |
| plan, verdict | `{plan}`, `{verdict}`: equal for the same seed |

| rule | violations |
|---|---|
{rules}

A seed has each pair of runner, provider and sink, and three seeds in a row have each triple. Left out: batch
inference on Dataflow, as the task prepares and awaits it, and Prism where `scripts/build-prism` has not run.

`{out}` keeps the history of each case, and
`python -m bench.verdict.checker HISTORY.json` judges it again. `tests/pipeline/test_verdict.py` plants faults in
the code, each of which is found: answers joined by position, answers that are not recorded and so paid for again,
a teardown that is skipped.

Somebody who had not read the checker planted five more: rows that a retry writes twice, a retried row with the
answer of its neighbour, a refused prompt that is published as an empty answer, a few prompts that are sent twice,
and two GPUs where one was asked for. The last one was found only with a rule of its own.
"""


@dataclass(frozen=True)
class Verdict:
    """The verdict.

    Attributes:
        lines: A line for each violation.
        digest: Digest of which case violates which rule; equal for equal verdicts.
    """

    lines: tuple[str, ...]
    digest: str

    @property
    def is_passed(self) -> bool:
        """Whether no rule is violated."""
        return not self.lines


def verdict_of(histories: Sequence[History]) -> Verdict:
    """Judges all histories."""
    found = [(history.case, violation) for history in histories for violation in check(history)]
    rules = sorted({f"{case}: {violation.rule}" for case, violation in found})
    cases = sorted(history.case for history in histories)
    return Verdict(
        lines=tuple(f"{case}: {violation.rule}: {violation.what}" for case, violation in found),
        digest=sha256("\n".join([*cases, *rules]).encode()).hexdigest()[:12],
    )


def write_page(
    path: Path, seed: int, plan: str, histories: Sequence[History], machine: Mapping[str, Any], seconds: float
) -> None:
    """Writes the page."""
    violated = Counter(violation.rule for history in histories for violation in check(history))
    axes = Counter(history.case.partition("-")[0] for history in histories)
    path.write_text(
        _PAGE.format(
            **{name: machine[name] for name in ("commit", "system", "python", "cores", "speed")},
            seed=seed,
            date=machine["date"][:10],
            minutes=seconds / 60,
            cases=len(histories),
            axes=", ".join(f"{count} {name}" for name, count in axes.items()),
            kills=sum(len(history.kills) for history in histories),
            rows=sum(len(history.rows) for history in histories),
            refused=sum(len(history.dead_letter) for history in histories),
            paid=sum(request.is_paid for history in histories for request in history.requests),
            again=sum(map(paid_again, histories)),
            in_flight=sum(kill.in_flight for history in histories for kill in history.kills),
            gpu_seconds=sum((rent.until or 0) - rent.since for history in histories for rent in history.rents),
            plan=plan,
            verdict=verdict_of(histories).digest,
            rules="\n".join(f"| {text} | {violated[rule]} |" for rule, text in RULES.items()),
            out="bench/results/verdict/histories",
        )
    )
