"""What a plain consumer loop does: polls, asks with `asyncio.gather`, sends the answers, and moves its positions.

`python -m bench.stream.plain_loop SERVERS GROUP URL` runs until SIGTERM. It has no transactions and no journal,
and waits for the slowest message of each poll.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import aiohttp
from confluent_kafka import Consumer, Producer

from bench.stream.trial import ANSWERS, QUESTIONS, RECOVERY

#: Messages of one poll, and time to wait for them, in seconds.
_MESSAGES, _WAIT_SECONDS = 100, 0.005


async def run(servers: str, group: str, url: str) -> None:
    """Answers messages until the process is asked to end."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **RECOVERY,
        }
    )
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, **RECOVERY})
    consumer.subscribe([QUESTIONS], on_assign=lambda _, parts: sys.stderr.write(f"assigned {len(parts)}\n"))
    is_over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_over.set)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        while not is_over.is_set():
            messages = [each for each in consumer.consume(_MESSAGES, _WAIT_SECONDS) if each.error() is None]
            answers = await asyncio.gather(*(_ask(session, url, message) for message in messages))
            for message, answer in zip(messages, answers, strict=True):
                value = {
                    "kafka_partition": message.partition(),
                    "kafka_offset": message.offset(),
                    "answer": answer,
                }
                producer.produce(ANSWERS, json.dumps(value), message.key())
            if messages:
                producer.flush()
                consumer.commit(asynchronous=False)
    consumer.close()


async def _ask(session: aiohttp.ClientSession, url: str, message: Any) -> str:
    text = json.loads(message.value())["text"]
    body = {"model": "sandbox-model", "messages": [{"role": "user", "content": text}]}
    async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
        return str((await reply.json())["choices"][0]["message"]["content"])


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
