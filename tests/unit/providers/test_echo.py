from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.providers.echo import EchoBackend
from airflow_provider_llmbeam.spec import EchoModel


def test_an_echo_is_the_prompt(run: Callable[..., Any]) -> None:
    backend = EchoBackend(EchoModel(type="echo", name="parrot"))
    reply = run(backend.complete(Prompt("hello, hello!", system="Be brief.")))
    assert (reply.text, reply.finish_reason, reply.model) == ("hello, hello!", "stop", "parrot")
    assert reply.input_tokens == reply.output_tokens == 3
    run(backend.aclose())


def test_an_echo_takes_its_time(run: Callable[..., Any]) -> None:
    async def main() -> float:
        started = asyncio.get_running_loop().time()
        await EchoBackend(EchoModel(type="echo", latency_seconds=60)).complete(Prompt("a"))
        return asyncio.get_running_loop().time() - started

    assert run(main()) == 60
