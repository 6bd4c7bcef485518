from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from llmbeam_sandbox import Sandbox

from tests.clouds import authorized

CHAT = {"model": "m", "messages": [{"role": "user", "content": "row 7"}]}
ERROR = {"kind": "error", "http_status": 503}
METHOD = "openai.chatCompletions"


@pytest.fixture
def http(sandbox: Sandbox) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=sandbox.url, headers=authorized(sandbox), timeout=60) as client:
        yield client


def test_stats_count_calls_statuses_and_billed_tokens(sandbox: Sandbox, http: httpx.Client) -> None:
    http.post("/sandbox/faults", json={"method": METHOD, "fault": ERROR})
    assert [http.post("/v1/chat/completions", json=CHAT).status_code for _ in range(2)] == [503, 200]
    stats = http.get("/sandbox/stats").json()
    assert stats == sandbox.stats()
    assert stats["methods"][METHOD] == {"calls": 2, "by_http_status": {"503": 1, "200": 1}, "faults_left": 0}
    assert stats["billed_answers"] == 1
    assert stats["input_tokens"] == 2
    assert stats["max_in_flight"] >= 1
    assert stats["quota"]["requests_per_minute"] is None
    assert stats["first_request_at"] <= stats["last_request_at"]


def test_stats_before_the_first_request_are_empty(http: httpx.Client) -> None:
    stats = http.get("/sandbox/stats").json()
    assert (stats["billed_answers"], stats["first_request_at"]) == (0, None)


@pytest.mark.parametrize(
    ("rule", "statuses"),
    [
        ({}, [503, 200, 200]),
        ({"every": 2}, [200, 503, 200]),
        ({"contains": "row 7"}, [503, 503, 503]),
        ({"contains": "row 7", "times": 2}, [503, 503, 200]),
        ({"contains": "row 8"}, [200, 200, 200]),
    ],
)
def test_faults_can_be_added_from_another_process(
    http: httpx.Client, rule: dict[str, Any], statuses: list[int]
) -> None:
    assert http.post("/sandbox/faults", json={"method": METHOD, "fault": ERROR, **rule}).status_code == 200
    assert [http.post("/v1/chat/completions", json=CHAT).status_code for _ in statuses] == statuses


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({"method": "openai.chat", "fault": ERROR}, "must be one of"),
        ({"method": METHOD, "fault": {"kind": "explode"}}, "must be one of"),
        ({"method": METHOD, "fault": {"kind": "error", "status": 3}}, "fields of a fault"),
        ({"method": METHOD, "fault": 3}, "fields of a fault"),
        ({"method": METHOD}, "Give `method`, `fault`"),
        ({"method": METHOD, "fault": ERROR, "n": 3}, "Give `method`, `fault`"),
        ({"method": METHOD, "fault": ERROR, "contains": "x", "times": "two"}, "not supported"),
    ],
)
def test_an_invalid_request_for_a_fault_is_refused(
    http: httpx.Client, order: dict[str, Any], message: str
) -> None:
    response = http.post("/sandbox/faults", json=order)
    assert response.status_code == 400
    assert message in response.json()["error"]


def test_reset_clears_everything(sandbox: Sandbox, http: httpx.Client) -> None:
    http.post("/v1/chat/completions", json=CHAT)
    http.post("/sandbox/faults", json={"method": METHOD, "fault": ERROR})
    assert http.post("/sandbox/reset").status_code == 200
    assert len(sandbox.requests) == 0
    sandbox.faults.assert_all_consumed()
