"""NVIDIA NeMo Data Designer: one LLM text column over a seed dataset."""

from __future__ import annotations

from pathlib import Path

from bench.contenders.contender import NOT_ON_UNKNOWN_QUOTAS, Contender
from bench.contenders.task import Task

CONTENDER = Contender(
    name="data-designer",
    module="bench.contenders.data_designer",
    jobs="ABCDEH",
    distribution="data-designer",
    requirements=("data-designer==0.9.6",),
    environment={"NEMO_TELEMETRY_ENABLED": "false"},
    not_run={"F": "does not support token quotas", "G": "leaves batching to the server", **NOT_ON_UNKNOWN_QUOTAS},
    remarks="adaptive concurrency of its own, up to the job's requests in flight; a quota cannot be configured",
)


def main() -> None:
    """Generates the column; dropped rows have no answer."""
    task = Task.from_command_line()
    import data_designer.config as dd
    import pandas as pd
    from data_designer.interface import DataDesigner

    directory, rows = Path(task.directory), task.rows()
    provider = dd.ModelProvider(name="stub", endpoint=task.openai_url, provider_type="openai", api_key="bench")
    designer = DataDesigner(artifact_path=directory / "artifacts", model_providers=[provider])
    model = dd.ModelConfig(
        alias="model",
        model="stub-model",
        provider="stub",
        skip_health_check=True,
        inference_parameters=dd.ChatCompletionInferenceParams(max_parallel_requests=task.max_in_flight),
    )
    builder = dd.DataDesignerConfigBuilder(model_configs=[model])
    builder.with_seed_dataset(dd.DataFrameSeedSource(df=pd.DataFrame(rows)))
    builder.add_column(dd.LLMTextColumnConfig(name="answer", model_alias="model", prompt="{{ text }}"))
    task.wait_for_start()
    dataset = designer.create(builder, num_records=len(rows), dataset_name="rows").load_dataset()
    task.finish({int(row["id"]): row["answer"] for row in dataset.to_dict("records")})


if __name__ == "__main__":
    main()
