"""A job that shares its quota with other traffic, simulated: at the recommended rate and at the whole quota."""

from __future__ import annotations

import itertools
import random

from llmbeam_sandbox.models.quota import Quota, QuotaLedger

from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.quota.evidence import Allowance, Evidence
from airflow_provider_llmbeam.quota.health import judge
from airflow_provider_llmbeam.quota.recommendation import recommended_limits
from airflow_provider_llmbeam.spec.quota_question import QuotaQuestion
from bench.simulation.simulator import Client, Request, Simulation

QUOTA, NEIGHBOURS, ROWS, NOW = 3000, 1200.0, 3000, 1_700_000_000.0


class Neighbours:
    """Traffic at a rate that no 429 changes, with gaps of random length."""

    def __init__(self):
        self._next, self._rng = 0.0, random.Random(0)

    def admit(self, now, tokens, backlog=0.0):
        if now < self._next:
            return self._next - now
        self._next = now + self._rng.uniform(0.5, 1.5) * 60 / NEIGHBOURS
        return 0.0

    def settle(self, *_, **__):
        pass

    def rejected(self, *_):
        return 0.0


def rejections(requests_per_minute):
    """Returns the 429s of a job at this rate, and those of its neighbours."""
    job = Client(Governor(requests_per_minute=requests_per_minute), iter([Request()] * ROWS), 64, ROWS)
    others = Client(Neighbours(), itertools.repeat(Request()), 64)
    Simulation(QuotaLedger(Quota(requests_per_minute=QUOTA)), [job, others], lambda rng: 0.2).run(300)
    assert sum(record.is_billed for record in job.records) == ROWS
    return [sum(not record.is_billed for record in client.records) for client in (job, others)]


def test_requests_are_rarely_rejected_at_the_recommended_rate_and_often_at_the_whole_quota():
    used = Allowance(name="limits", unit="requests", limit=QUOTA, used=NEIGHBOURS, until=NOW - 200)
    health = judge(Evidence(situation="published_quota", what="m", allowances=(used,)), NOW)
    known = {"requests_per_minute": QUOTA}
    limits = recommended_limits(QuotaQuestion.parse({"model": {"type": "echo"}, "limits": known}), health)
    own, of_others = rejections(limits["requests_per_minute"])
    assert own <= 0.01 * ROWS
    assert sum(rejections(QUOTA)) > 3 * (own + of_others)
