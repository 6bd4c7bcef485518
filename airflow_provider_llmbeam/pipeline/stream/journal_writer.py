"""Writes the entries of the journal, outside all transactions, as soon as an answer arrives."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

from airflow_provider_llmbeam.pipeline.queues.kafka_client import Client, client_package
from airflow_provider_llmbeam.pipeline.stream.member import journal_key
from airflow_provider_llmbeam.pipeline.stream.partition import Place

#: Time after which an entry that no broker has taken fails, in milliseconds: as long as the worker tries to join.
_DELIVERY_MILLISECONDS = 300_000


class JournalWriter:
    """The producer of the journal, with a thread that takes its acknowledgements.

    Args:
        client: The cluster.
        topic: Topic of the journal.
        max_bytes: Size of the largest record.
    """

    def __init__(self, client: Client, topic: str, max_bytes: int) -> None:
        self._kafka = client_package("source")
        self._client, self._topic, self._max_bytes = client, topic, max_bytes
        self._producer = self._kafka.Producer(
            {
                "compression.type": "lz4",
                "linger.ms": 1,
                "batch.size": max_bytes,
                **client.producer_settings(),
                "acks": "all",
                "enable.idempotence": True,
                "delivery.timeout.ms": _DELIVERY_MILLISECONDS,
            }
        )
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._take_acknowledgements, name="llmbeam-journal", daemon=True)
        self._thread.start()

    async def write(self, place: Place, fingerprint: str, entry: bytes) -> int | None:
        """Writes an entry; returns its offset once all replicas in sync have it, `None` if it is too large.

        Raises:
            JobFailedError: The cluster does not take it.
        """
        topic, number = place
        if len(entry) > self._max_bytes:
            return None
        loop = asyncio.get_running_loop()
        written: asyncio.Future[int] = loop.create_future()

        def end(error: Any, offset: int) -> None:
            if written.done():  # nobody waits any more
                return
            if error is None:
                written.set_result(offset)
            else:
                written.set_exception(self._client.error(error, "writing the journal"))

        def delivered(error: Any, record: Any) -> None:
            loop.call_soon_threadsafe(end, error, record.offset())

        while True:
            try:
                self._producer.produce(
                    self._topic, entry, journal_key(topic, fingerprint), number, on_delivery=delivered
                )
            except BufferError:
                await asyncio.sleep(0.01)
            else:
                return await written

    async def find(self, fingerprint: str) -> None:
        """Finds nothing: what others have written is read with the partition."""

    def write_piece(self, topic: str, key: bytes, value: bytes) -> None:
        """Writes a record that may be lost."""
        with contextlib.suppress(BufferError):  # the queue of the client is full
            self._producer.produce(topic, value, key)

    async def close(self) -> None:
        """Writes what is left."""
        await asyncio.to_thread(self._producer.flush, 10.0)
        self._is_closed.set()
        await asyncio.to_thread(self._thread.join)

    def _take_acknowledgements(self) -> None:
        while not self._is_closed.is_set():
            self._producer.poll(0.1)
