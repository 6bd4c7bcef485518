from __future__ import annotations

import anthropic
import pytest
from llmbeam_sandbox import ManualClock, Sandbox

ROW = "batch.anthropicRow"


def request_of(number, **fields):
    params = {"model": "claude-haiku-5-5", "max_tokens": 100}
    return {
        "custom_id": f"row-{number}",
        "params": {**params, "messages": [{"role": "user", "content": f"prompt {number}"}]} | fields,
    }


@pytest.fixture(scope="module")
def clock():
    return ManualClock()


@pytest.fixture(scope="module")
def server(clock):
    with Sandbox(clock=clock) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(server):
    server.reset()
    return server


@pytest.fixture
def client(sandbox):
    return anthropic.Anthropic(base_url=sandbox.url, api_key="sk", max_retries=0)


@pytest.fixture
def batches(client):
    return client.messages.batches


def submit(batches, rows=4):
    return batches.create(requests=[request_of(number) for number in range(rows)])


def test_a_batch_answers_each_request_as_the_model_does_online_and_is_billed_at_half(
    sandbox, clock, client, batches
) -> None:
    sandbox.batches.change(run_seconds=200)
    made = submit(batches)
    assert made.processing_status == "in_progress"
    assert (made.expires_at - made.created_at).total_seconds() == 86_400
    clock.advance(100)
    half = batches.retrieve(made.id)
    assert (half.request_counts.processing, half.request_counts.succeeded, half.results_url) == (4, 0, None)
    clock.advance(100)
    done = batches.retrieve(made.id)
    assert (done.processing_status, done.request_counts.succeeded) == ("ended", 4)
    found = {line.custom_id: line.result for line in batches.results(made.id)}
    assert set(found) == {f"row-{number}" for number in range(4)}
    online = client.messages.create(**request_of(3)["params"])
    assert found["row-3"].message.content[0].text == online.content[0].text
    assert found["row-3"].message.usage.service_tier == "batch"
    assert {charge.tier: charge.answers for charge in sandbox.token_bill.charges} == {"batch": 4, "standard": 1}


def test_each_line_says_what_became_of_its_request_and_only_answers_are_billed(sandbox, clock, batches) -> None:
    sandbox.batches.change(outcome="expired", run_seconds=10, fail_ratio=0.1)
    made = submit(batches, rows=100)
    clock.advance(10)
    counts = batches.retrieve(made.id).request_counts
    kinds = [line.result.type for line in batches.results(made.id)]
    assert counts.expired == kinds.count("expired") == 1
    assert counts.errored == kinds.count("errored") > 0
    assert (
        sum(charge.answers for charge in sandbox.token_bill.charges)
        == counts.succeeded
        == kinds.count("succeeded")
    )


def test_a_canceled_batch_returns_what_was_answered(sandbox, clock, batches) -> None:
    sandbox.batches.change(run_seconds=100, cancel_seconds=10)
    made = submit(batches)
    clock.advance(50)
    assert batches.cancel(made.id).processing_status == "canceling"
    clock.advance(10)
    done = batches.retrieve(made.id)
    assert (done.processing_status, done.request_counts.succeeded, done.request_counts.canceled) == ("ended", 2, 2)
    assert batches.cancel(made.id).processing_status == "ended"


def test_a_wrong_request_is_an_errored_line(clock, batches) -> None:
    made = batches.create(requests=[request_of(0), request_of(1, temperature=0.5)])
    found = {line.custom_id: line.result for line in batches.results(made.id)}
    assert found["row-1"].error.error.type == "invalid_request_error"
    assert found["row-0"].type == "succeeded"


def test_the_list_has_the_newest_batch_first_and_pages_in_both_directions(batches) -> None:
    names = [submit(batches, rows=1).id for _ in range(5)][::-1]
    assert [batch.id for batch in batches.list(limit=2)] == names
    assert [batch.id for batch in batches.list(before_id=names[2], limit=2).data] == names[:2]


def test_an_ended_batch_is_deleted_and_a_running_one_is_not(sandbox, batches) -> None:
    done = submit(batches)
    assert batches.delete(done.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        batches.retrieve(done.id)
    sandbox.batches.change(outcome="stuck")
    with pytest.raises(anthropic.BadRequestError):
        batches.delete(submit(batches).id)


@pytest.mark.parametrize("name", ["", "with space", "x" * 65])
def test_a_custom_id_that_is_none_is_refused(batches, name) -> None:
    with pytest.raises(anthropic.BadRequestError, match="custom_id"):
        batches.create(requests=[{**request_of(0), "custom_id": name}])


def test_custom_ids_are_unique(batches) -> None:
    with pytest.raises(anthropic.BadRequestError, match="unique"):
        batches.create(requests=[request_of(0), request_of(0)])
