from __future__ import annotations

import asyncio

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.providers.echo.client import EchoBackend
from airflow_provider_llmbeam.spec import EchoModel
from tests.unit.engine.conftest import run_in_no_time


def test_an_echo_is_the_prompt() -> None:
    backend = EchoBackend(EchoModel(type="echo", name="parrot"))
    reply = run_in_no_time(backend.complete(Prompt("hello, hello!", system="Be brief.")))
    assert (reply.text, reply.finish_reason, reply.model) == ("hello, hello!", "stop", "parrot")
    assert reply.tokens.input == reply.tokens.output == 3
    run_in_no_time(backend.aclose())


def test_an_echo_takes_its_time() -> None:
    async def main() -> float:
        started = asyncio.get_running_loop().time()
        await EchoBackend(EchoModel(type="echo", latency_seconds=60)).complete(Prompt("a"))
        return asyncio.get_running_loop().time() - started

    assert run_in_no_time(main()) == 60
