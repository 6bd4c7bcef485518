"""Which answers of a partition may be committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.stream.order import NoOrder, PartitionOrder


def order_of(*offsets: int, position: int = 0) -> PartitionOrder[str]:
    order: PartitionOrder[str] = PartitionOrder(position)
    for offset in offsets:
        order.take(offset)
    return order


def test_an_answer_is_held_until_every_earlier_message_is_settled():
    order = order_of(3, 4, 7)  # compaction and transactions leave gaps
    order.settle(4, "b", 10)
    order.settle(7, "c", 1)
    assert not order.has_ready()
    assert [*order.ready(9)] == []
    assert (order.held, order.held_bytes, order.unsettled) == (2, 11, 1)
    order.settle(3, "a", 5)
    assert [*order.ready(9)] == [(3, "a"), (4, "b"), (7, "c")]


def test_a_transaction_takes_no_more_than_its_maximum_and_the_next_one_continues_after_it():
    order = order_of(0, 1, 2)
    for offset in (0, 1, 2):
        order.settle(offset, str(offset), 1)
    assert [*order.ready(2)] == [(0, "0"), (1, "1")]
    order.commit(2)
    assert [*order.ready(2)] == [(2, "2")]
    assert (order.position, order.held, order.held_bytes, order.is_empty) == (2, 1, 1, False)


def test_what_is_ready_and_not_committed_is_ready_again():
    order = order_of(0)
    order.settle(0, "a", 1)
    assert [*order.ready(1)] == [*order.ready(1)] == [(0, "a")]


@given(st.permutations(range(7)), st.integers(1, 7))
def test_in_whatever_order_answers_arrive_they_are_committed_in_that_of_the_messages(arrivals, most):
    order, committed = order_of(*range(7)), list[int]()
    for offset in arrivals:
        order.settle(offset, str(offset), 1)
        settled = {*arrivals[: arrivals.index(offset) + 1]}
        while found := [*order.ready(most)]:
            committed += [at for at, _ in found]
            order.commit(found[-1][0] + 1)
        assert committed == [*range(next((at for at in range(7) if at not in settled), 7))]
        assert order.held == len(settled) - len(committed) == order.held_bytes
    assert committed == [*range(7)]
    assert order.is_empty


def test_without_order_an_answer_is_ready_as_soon_as_it_is_there():
    order: NoOrder[str] = NoOrder(0)
    for offset in (0, 1, 2):
        order.take(offset)
    order.settle(2, "c", 5)
    assert [*order.ready(9)] == [(0, "c")]
    assert (order.unsettled, order.held, order.held_bytes, order.is_empty) == (2, 1, 5, False)
    order.settle(0, "a", 1)
    order.commit(1)
    assert [*order.ready(9)] == [(1, "a")]
    order.settle(1, "b", 1)
    order.commit(3)
    assert (order.unsettled, order.held, order.held_bytes, order.is_empty) == (0, 0, 0, True)


def test_a_message_that_the_client_delivers_again_is_taken_once_also_after_its_commit():
    order = PartitionOrder[str](7)
    assert [order.take(offset) for offset in (7, 8, 7)] == [True, True, False]
    order.settle(7, "a", 1)
    order.commit(8)
    assert not order.take(7)
    assert (order.position, order.unsettled) == (8, 1)
