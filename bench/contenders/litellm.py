"""LiteLLM: its `Router` with a semaphore, in a loop like those that its users write."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.contenders.contender import NOT_ON_UNKNOWN_QUOTAS, Contender
from bench.contenders.task import Task

CONTENDER = Contender(
    name="litellm",
    module="bench.contenders.litellm",
    jobs="ABDEH",
    distribution="litellm",
    requirements=("litellm==1.106.2",),
    environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    not_run={
        "C": "stores nothing between runs",
        "F": "cannot wait for a token quota",
        "G": "does not pad prompts",
        **NOT_ON_UNKNOWN_QUOTAS,
    },
    remarks="Router, 3 retries; in jobs E and H the quota as `rpm`",
)


def main() -> None:
    """Requests an answer for each row; a row that failed after all retries has no answer."""
    task = Task.from_command_line()
    from litellm import Router

    params: dict[str, Any] = {"model": "openai/gpt-4o-mini", "api_base": task.openai_url, "api_key": "bench"}
    if task.requests_per_minute is not None:
        params["rpm"] = task.requests_per_minute
    router = Router(model_list=[{"model_name": "model", "litellm_params": params}], num_retries=3)
    task.wait_for_start()

    async def ask_all() -> dict[int, str | None]:
        slots = asyncio.Semaphore(task.max_in_flight)

        async def ask(text: str) -> str | None:
            async with slots:
                try:
                    answer = await router.acompletion(model="model", messages=[{"role": "user", "content": text}])
                except Exception:  # noqa: BLE001 - each kind of failure is a lost row
                    return None
            return str(answer.choices[0].message.content)

        rows = task.rows()
        answers = await asyncio.gather(*(ask(row["text"]) for row in rows))
        return {row["id"]: answer for row, answer in zip(rows, answers, strict=True)}

    task.finish(asyncio.run(ask_all()))


if __name__ == "__main__":
    main()
