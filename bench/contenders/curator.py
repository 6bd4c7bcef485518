"""Bespoke Curator: its online processor with the `openai` backend."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bench.contenders.contender import NOT_ON_UNKNOWN_QUOTAS, Contender
from bench.contenders.task import Task
from bench.contenders.vocabulary import use_bundled_vocabulary

CONTENDER = Contender(
    name="curator",
    module="bench.contenders.curator",
    jobs="ABCDEFH",
    distribution="bespokelabs-curator",
    requirements=("bespokelabs-curator==0.1.31",),
    environment={
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "TELEMETRY_ENABLED": "false",
        "CURATOR_VIEWER": "0",
        "HF_HUB_OFFLINE": "1",
    },
    not_run={"G": "leaves batching to the server", **NOT_ON_UNKNOWN_QUOTAS},
    remarks="openai backend, 10 retries, resumes from its cache; sends one probe request in addition",
)
#: Rates per minute that are configured if the quota is unknown.
UNKNOWN_REQUESTS, UNKNOWN_TOKENS = 1_000_000, 1_000_000_000


def main() -> None:
    """Requests an answer for each row; rows that failed after all retries have no answer."""
    task = Task.from_command_line()
    use_bundled_vocabulary()
    os.environ["CURATOR_CACHE_DIR"] = str(Path(task.directory) / "cache")
    from bespokelabs import curator

    class RowLLM(curator.LLM):
        """Sends the text of a row unchanged."""

        def prompt(self, row: dict[str, Any]) -> str:
            return str(row["text"])

        def parse(self, row: dict[str, Any], response: str) -> dict[str, Any]:
            return {**row, "answer": response}

    llm = RowLLM(
        model_name="gpt-4o-mini",
        backend="openai",
        backend_params={
            "base_url": task.openai_url,
            "max_requests_per_minute": task.requests_per_minute or UNKNOWN_REQUESTS,
            "max_tokens_per_minute": task.tokens_per_minute or UNKNOWN_TOKENS,
            "max_concurrent_requests": task.max_in_flight,
            "max_retries": 10,
            "require_all_responses": False,
            "in_mtok_cost": 1,
            "out_mtok_cost": 2,
        },
    )
    task.wait_for_start()
    result = llm(task.rows())
    rows = getattr(result, "dataset", result)
    task.finish({row["id"]: row["answer"] for row in rows})


if __name__ == "__main__":
    main()
