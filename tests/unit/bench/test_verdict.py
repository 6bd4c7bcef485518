"""The checker of histories, on histories that are written by hand."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.verdict import checker
from bench.verdict import history as history_module
from bench.verdict.cases import PROVIDERS, RUNNERS, SINKS, digest_of, make_plan
from bench.verdict.checker import RULES, check, paid_again
from bench.verdict.history import History, Kill, PublishedRow, Rent, Request, SourceRow
from bench.verdict.page import verdict_of


def paid(prompt: str, at: float) -> Request:
    return Request(prompt=prompt, http_status=200, is_paid=True, answer=f"answer to {prompt}", received_at=at)


def published(key: int, prompt: str) -> PublishedRow:
    return PublishedRow(key=key, answer=f"answer to {prompt}")


REFUSED = Request(prompt="p3", http_status=400, is_paid=False, answer="", received_at=13.0)
#: Rows 1 and 2 have one prompt, row 3 is refused; at the kill, p2 was in flight, and is paid for again.
GOOD = History(
    case="good",
    began_at=10.0,
    ended_at=20.0,
    rows=tuple(SourceRow(key=key, prompt=prompt) for key, prompt in enumerate(("p0", "p1", "p1", "p3", "p2"))),
    requests=(paid("p0", 11.0), paid("p1", 12.0), REFUSED, paid("p2", 13.0), paid("p2", 15.0)),
    published=(published(0, "p0"), published(1, "p1"), published(2, "p1"), published(4, "p2")),
    dead_letter=(3,),
    kills=(Kill(since=14.0, until=14.5, in_flight=2, published=0),),
    rents=(Rent(name="endpoint", gpus=1, since=10.5, until=19.0),),
    gpus=1,
)


def changed_answer(number: int, answer: str) -> tuple[PublishedRow, ...]:
    rows = list(GOOD.published)
    rows[number] = replace(rows[number], answer=answer)
    return tuple(rows)


BAD = {
    "the job failed": (replace(GOOD, failure="exit status 1"), "ended"),
    "a row is lost": (replace(GOOD, published=GOOD.published[1:]), "every row once"),
    "a row is published twice": (
        replace(GOOD, published=(*GOOD.published, published(0, "p0"))),
        "every row once",
    ),
    "an answered row is also a failed one": (replace(GOOD, dead_letter=(3, 0)), "every row once"),
    "a row of no source is published": (
        replace(GOOD, published=(*GOOD.published, published(9, "p0"))),
        "every row once",
    ),
    "an answer is that of another row": (
        replace(GOOD, published=changed_answer(0, "answer to p1")),
        "answer of its row",
    ),
    "an answer was never computed": (
        replace(GOOD, published=changed_answer(0, "made up")),
        "answer of its row",
    ),
    "an answer was not paid for": (replace(GOOD, requests=GOOD.requests[1:]), "answer of its row"),
    "a prompt is paid for again without a kill": (
        replace(GOOD, requests=(*GOOD.requests, paid("p0", 12.0))),
        "paid once",
    ),
    "a prompt is paid for thrice around one kill": (
        replace(GOOD, requests=(*GOOD.requests, paid("p2", 16.0))),
        "paid once",
    ),
    "more is paid for again than was in flight": (
        replace(GOOD, requests=(*GOOD.requests, paid("p0", 16.0), paid("p1", 16.0))),
        "paid once",
    ),
    "a prompt of no row is paid for": (
        replace(GOOD, requests=(*GOOD.requests, paid("p9", 12.0))),
        "paid for a row",
    ),
    "a row failed although the server answered": (
        replace(GOOD, requests=tuple(one for one in GOOD.requests if one is not REFUSED)),
        "failed for a reason",
    ),
    "half of the output is seen": (
        replace(GOOD, kills=(replace(GOOD.kills[0], published=2),)),
        "published at one stroke",
    ),
    "a GPU is billed after the run": (
        replace(GOOD, rents=(replace(GOOD.rents[0], until=20.5),)),
        "no GPU outside its run",
    ),
    "a GPU is billed before the run": (
        replace(GOOD, rents=(replace(GOOD.rents[0], since=9.0),)),
        "no GPU outside its run",
    ),
    "a GPU is still billed": (
        replace(GOOD, rents=(replace(GOOD.rents[0], until=None),)),
        "no GPU outside its run",
    ),
    "two GPUs are billed at once where one was asked for": (
        replace(GOOD, rents=(*GOOD.rents, replace(GOOD.rents[0], since=11.0, until=12.0))),
        "no GPU that was not asked for",
    ),
    "a resource has two GPUs where one was asked for": (
        replace(GOOD, rents=(replace(GOOD.rents[0], gpus=2),)),
        "no GPU that was not asked for",
    ),
}


def test_a_history_that_keeps_all_rules_has_no_violation():
    assert check(GOOD) == []
    assert paid_again(GOOD) == 1


@pytest.mark.parametrize(("history", "rule"), BAD.values(), ids=BAD)
def test_each_broken_history_violates_the_rule_that_it_breaks(history, rule):
    assert rule in {violation.rule for violation in check(history)}


def test_every_rule_is_broken_by_a_history():
    assert {rule for _, rule in BAD.values()} == RULES.keys()


def test_a_gpu_that_follows_another_one_is_not_a_second_one():
    (rent,) = GOOD.rents
    rents = (replace(rent, until=12.0), replace(rent, since=12.0))
    assert check(replace(GOOD, rents=rents)) == []


def test_a_probe_of_an_endpoint_may_be_paid_for():
    assert check(replace(GOOD, probes=1, requests=(*GOOD.requests, paid("p9", 12.0)))) == []


def test_a_recorded_history_is_judged_again_from_its_file(tmp_path, capsys):
    for name, history in (("good", GOOD), ("bad", BAD["a row is lost"][0])):
        (tmp_path / name).write_text(json.dumps(history.fields()))
    assert checker.main([str(tmp_path / "good")]) == 0
    assert checker.main([str(tmp_path / "good"), str(tmp_path / "bad")]) == 1
    assert capsys.readouterr().out == "good: every row once: row 0 is lost\n"


@pytest.mark.parametrize("module", [checker, history_module])
def test_the_checker_imports_nothing_of_what_it_judges(module):
    names = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    assert names - {"bench.verdict.history"} <= sys.stdlib_module_names | {"collections.abc"}


def test_equal_seeds_give_equal_plans_and_others_do_not():
    assert digest_of(make_plan(7)) == digest_of(make_plan(7)) != digest_of(make_plan(8))


def test_a_plan_has_each_pair_and_three_plans_have_each_triple():
    plans = [make_plan(seed) for seed in (7, 8, 9)]
    triples = {(case.runner, case.provider, case.sink) for plan in plans for case in plan}
    assert len(triples) == len(RUNNERS) * len(PROVIDERS) * len(SINKS) - len(SINKS)
    for plan in plans:
        pairs = {(case.runner, case.provider) for case in plan}
        assert len(pairs) == len(RUNNERS) * len(PROVIDERS) - 1
        assert len({(case.runner, case.sink) for case in plan}) == len(RUNNERS) * len(SINKS)


def test_a_verdict_is_equal_for_equal_violations_whatever_else_differs():
    lost = BAD["a row is lost"][0]
    other = replace(lost, published=GOOD.published[:-1], ended_at=21.0)
    assert verdict_of([GOOD, lost]).digest == verdict_of([GOOD, other]).digest != verdict_of([GOOD]).digest
    assert verdict_of([GOOD]).is_passed
    assert not verdict_of([lost]).is_passed
