"""fenic: `semantic.map` over a DataFrame."""

from __future__ import annotations

import os
from pathlib import Path

from bench.contenders.contender import NOT_ON_UNKNOWN_QUOTAS, Contender
from bench.contenders.task import Task
from bench.contenders.vocabulary import use_bundled_vocabulary

CONTENDER = Contender(
    name="fenic",
    module="bench.contenders.fenic",
    jobs="ABCDEFH",
    distribution="fenic",
    requirements=(
        "fenic==0.13.0",
        "tqdm==4.70.1",
        "requests==2.34.2",
        "httpx==0.28.1",
        "openai==2.54.0",
        "litellm==1.106.2",
    ),
    not_run={"G": "leaves batching to the server", **NOT_ON_UNKNOWN_QUOTAS},
    remarks="answer cache off, as by default; requires a quota, a high one where it is unknown",
)
#: Quota per minute that is configured if it is unknown, as fenic requires one.
UNKNOWN_REQUESTS, UNKNOWN_TOKENS = 1_000_000, 1_000_000_000


def main() -> None:
    """Maps the rows; the answer of a failed row is null."""
    task = Task.from_command_line()
    use_bundled_vocabulary()
    os.environ["OPENAI_BASE_URL"] = task.openai_url
    import fenic as fc

    database = Path(task.directory) / "database"
    database.mkdir(exist_ok=True)
    model = fc.OpenAILanguageModel(
        model_name="gpt-4o-mini",
        rpm=task.requests_per_minute or UNKNOWN_REQUESTS,
        tpm=task.tokens_per_minute or UNKNOWN_TOKENS,
    )
    semantic = fc.SemanticConfig(language_models={"model": model}, default_language_model="model")
    session = fc.Session.get_or_create(
        fc.SessionConfig(app_name="bench", db_path=str(database), semantic=semantic)
    )
    task.wait_for_start()
    answer = fc.semantic.map("{{ text }}", text=fc.col("text")).alias("answer")
    result = session.create_dataframe(task.rows()).select(fc.col("id"), answer).collect()
    task.finish({row["id"]: row["answer"] for row in result.data.to_dicts()})


if __name__ == "__main__":
    main()
