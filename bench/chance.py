"""Rows at a server that rejects requests by chance, beside a plain client of asyncio: `python -m bench.chance`.

A request is rejected by its row and the number of its attempt, so that both clients meet the same rejections. The
plain client has as many requests in flight; each waits for its own retry delay, and the others go on.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import aiohttp
from aiohttp import web

from airflow_provider_llmbeam.engine.backend import Backend
from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RetryPolicy
from airflow_provider_llmbeam.providers.gemini.client import GeminiBackend
from airflow_provider_llmbeam.providers.openai.client import OpenAIBackend
from airflow_provider_llmbeam.spec.model import GeminiModel, Generation, OpenAIModel

Api = Literal["openai", "gemini"]
APIS: tuple[Api, ...] = ("openai", "gemini")
IN_FLIGHT = 64
TOO_MANY_REQUESTS = 429


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A server.

    Attributes:
        share: Share of the requests that are rejected.
        advised_seconds: Value of `Retry-After`, and of `RetryInfo` for Gemini, in seconds.
        latency_seconds: Time until an answer.
        rejection_seconds: Time until a 429.
        seed: Seed of the rejections.
    """

    share: float = 0.1
    advised_seconds: int = 1
    latency_seconds: float = 0.05
    rejection_seconds: float = 0.05
    seed: int = 0


class ChanceServer:
    """Both APIs, on a port of loopback.

    Args:
        setting: The server.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._attempts: Counter[str] = Counter()
        self.rejected = 0
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> str:
        """Begins to listen; returns the address."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer_openai)
        app.router.add_post("/v1beta/models/{call}", self._answer_gemini)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aexit__(self, *_: object) -> None:
        """Closes the server."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer_openai(self, request: web.Request) -> web.StreamResponse:
        text = (await request.json())["messages"][-1]["content"]
        if await self._is_rejected(text):
            body: object = {"error": {"message": "Too many requests.", "code": "rate_limit_exceeded"}}
            headers = {"Retry-After": str(self._setting.advised_seconds)}
            return web.json_response(body, status=TOO_MANY_REQUESTS, headers=headers)
        usage = {"prompt_tokens": 4, "completion_tokens": 4}
        choice = {"message": {"role": "assistant", "content": f"echo {text}"}, "finish_reason": "stop"}
        return web.json_response({"model": "echo", "choices": [choice], "usage": usage})

    async def _answer_gemini(self, request: web.Request) -> web.StreamResponse:
        text = (await request.json())["contents"][-1]["parts"][-1]["text"]
        if await self._is_rejected(text):
            info = {
                "@type": "type.googleapis.com/google.rpc.RetryInfo",
                "retryDelay": f"{self._setting.advised_seconds}s",
            }
            body: object = {"error": {"code": 429, "message": "Resource exhausted.", "details": [info]}}
            return web.json_response(body, status=TOO_MANY_REQUESTS)
        usage = {"promptTokenCount": 4, "candidatesTokenCount": 4}
        candidate = {"content": {"parts": [{"text": f"echo {text}"}]}, "finishReason": "STOP"}
        return web.json_response({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "echo"})

    async def _is_rejected(self, text: str) -> bool:
        """Waits for the time of the reply; returns whether it is a 429."""
        self._attempts[text] += 1
        chance = random.Random(f"{self._setting.seed} {text} {self._attempts[text]}").random()
        is_rejected = chance < self._setting.share
        self.rejected += is_rejected
        await asyncio.sleep(self._setting.rejection_seconds if is_rejected else self._setting.latency_seconds)
        return is_rejected


async def send_plainly(url: str, texts: Sequence[str], api: Api) -> float:
    """Sends rows with a plain client; returns the time in seconds."""
    path, body = _plain(url, api)
    rows = iter(texts)

    async def send(session: aiohttp.ClientSession) -> None:
        for text in rows:
            while True:
                async with session.post(path, json=body(text)) as response:
                    found = await response.json()
                if response.status != TOO_MANY_REQUESTS:
                    break
                delay = response.headers.get("Retry-After") or found["error"]["details"][0]["retryDelay"]
                await asyncio.sleep(float(delay.removesuffix("s")))

    started = time.monotonic()
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(send(session))
    return time.monotonic() - started


def _plain(url: str, api: Api) -> tuple[str, Callable[[str], object]]:
    if api == "openai":
        return f"{url}/v1/chat/completions", lambda text: {"messages": [{"role": "user", "content": text}]}
    return (
        f"{url}/v1beta/models/echo:generateContent",
        lambda text: {"contents": [{"role": "user", "parts": [{"text": text}]}]},
    )


async def send_with_engine(url: str, texts: Sequence[str], api: Api, rate: LearnedRate) -> tuple[float, int]:
    """Sends rows with the engine; returns the time in seconds, and the number of answers."""
    generation = Generation(max_output_tokens=64)
    backend: Backend
    if api == "openai":
        backend = OpenAIBackend(OpenAIModel(type="openai", name="echo", base_url=f"{url}/v1"), generation, None)
    else:
        backend = GeminiBackend(GeminiModel(type="gemini", name="echo", base_url=url), generation, None)
    engine = Engine(
        backend,
        governor=rate,
        buckets=LengthBuckets((128, 512), 64),
        parser=OutputParser(None),
        policy=RetryPolicy(max_attempts=5, max_throttled_seconds=600),
        max_in_flight=IN_FLIGHT,
        request_timeout_seconds=60,
    )
    started = time.monotonic()
    try:
        outcomes = await engine.answer([Prompt(text) for text in texts])
    finally:
        await engine.aclose()
    return time.monotonic() - started, sum(isinstance(outcome, Completion) for outcome in outcomes)


async def compare(setting: Setting, rows: int, api: Api) -> dict[str, float]:
    """Returns times in seconds, and numbers of answers."""
    texts = [f"row {number}" for number in range(rows)]
    calm = dataclasses.replace(setting, share=0.0)

    async def use(server: ChanceServer, send: Callable[[str], Awaitable[tuple[float, int]]]) -> tuple[float, int]:
        async with server as url:
            return await send(url)

    async def plain(url: str) -> tuple[float, int]:
        return await send_plainly(url, texts, api), rows

    def with_engine(rate: LearnedRate) -> Callable[[str], Awaitable[tuple[float, int]]]:
        return lambda url: send_with_engine(url, texts, api, rate)

    rate = LearnedRate()
    plain_seconds, _ = await use(ChanceServer(setting), plain)
    server = ChanceServer(setting)
    seconds, answers = await use(server, with_engine(rate))
    next_rate = LearnedRate(rate.state.for_next_run())
    next_seconds, next_answers = await use(ChanceServer(calm), with_engine(next_rate))
    first_seconds, _ = await use(ChanceServer(calm), with_engine(LearnedRate(LearnedRateState())))
    return {
        "plain": plain_seconds,
        "engine": seconds,
        "answers": answers,
        "rejected": server.rejected,
        "next run without 429s": next_seconds,
        "its answers": next_answers,
        "first run without 429s": first_seconds,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each API; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000, metavar="N", help="number of rows (default: 4000)")
    parser.add_argument("--share", type=float, default=0.1, help="share that is rejected (default: 0.1)")
    parser.add_argument("--rejection-seconds", type=float, default=0.05, help="time until a 429 (default: 0.05)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the rejections (default: 0)")
    options = parser.parse_args(arguments)
    os.environ.setdefault("GOOGLE_API_KEY", "not-a-key")
    setting = Setting(share=options.share, rejection_seconds=options.rejection_seconds, seed=options.seed)
    for api in APIS:
        found = asyncio.run(compare(setting, options.rows, api))
        shown = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
        sys.stdout.write(f"{api}: {shown}; {found['engine'] / found['plain']:.2f} of the plain client\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
