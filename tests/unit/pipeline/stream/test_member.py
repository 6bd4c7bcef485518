"""What a member makes of the errors of its transactions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.queues.kafka_client import Client
from airflow_provider_llmbeam.pipeline.stream.member import Member, RestartError
from airflow_provider_llmbeam.pipeline.stream.queue import KEPT
from airflow_provider_llmbeam.pipeline.stream.topics import Topics
from airflow_provider_llmbeam.spec.source import KafkaSource

TOPICS = Topics(source=("q",), answers="a", dead_letter="d", journal="j", history=None, group="g")


class FailingProducer:
    """A producer whose transactions fail."""

    def __init__(self, code: int, *, is_aborted: bool) -> None:
        self._error = KafkaError(code, txn_requires_abort=is_aborted)
        self.aborted = 0

    def begin_transaction(self) -> None:
        pass

    def send_offsets_to_transaction(self, *_: Any) -> None:
        pass

    def commit_transaction(self, _: float) -> None:
        raise KafkaException(self._error)

    def abort_transaction(self, _: float) -> None:
        self.aborted += 1


def member_with(producer: FailingProducer) -> Member:
    source = KafkaSource(type="kafka", topic=("q",), bootstrap_servers="h:1")

    def nothing(_: Any) -> None:
        pass

    client = Client(source, "source", KEPT)
    member = Member(source, client, TOPICS, 1000, "w-0", {}, {}, None, nothing, nothing, nothing)
    member._producer = producer
    member._consumer = SimpleNamespace(consumer_group_metadata=lambda: None)
    return member


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.MSG_SIZE_TOO_LARGE])
def test_a_transaction_that_the_cluster_would_refuse_again_ends_the_worker_with_the_cause(code):
    member = member_with(FailingProducer(code, is_aborted=True))
    with pytest.raises(JobFailedError, match=f"committing answers failed: {KafkaError(code).name()}") as raised:
        member.commit([], 0, None)
    assert str(raised.value).endswith(KEPT)
    assert not raised.value.retryable


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID])
def test_a_member_that_its_group_has_no_more_joins_again(code):
    with pytest.raises(RestartError, match=KafkaError(code).name()):
        member_with(FailingProducer(code, is_aborted=True)).commit([], 0, None)


def test_a_transaction_that_may_succeed_next_time_is_aborted_and_repeated():
    producer = FailingProducer(KafkaError.ILLEGAL_GENERATION, is_aborted=True)
    assert not member_with(producer).commit([], 0, None)
    assert producer.aborted == 1


def test_the_error_of_a_member_whose_name_another_process_has_names_it():
    producer = FailingProducer(KafkaError._FENCED, is_aborted=False)
    with pytest.raises(RestartError, match=r"`transactional.id` 'g-w-0' is used by another process.*`--member`"):
        member_with(producer).commit([], 0, None)
