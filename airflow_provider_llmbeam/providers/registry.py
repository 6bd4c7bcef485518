"""Finds the code of an API family: the folder of `providers` that is named like the `type` of its models.

A module of the folder is a part, which a family has or not:

    client          open_backend(model, generation, output_schema, asked_tier=…)           texts
    embeddings      open_embeddings(model, embedding, access)                              vectors
    batch_format    open_format(model, generation, output_schema, embedding)               files of batch inference
    batch           open_batches(model, http, output_uri=…, embeds=…, kms_key_name=…)      jobs of batch inference
    probe           probe_request(model, embeds=…), model_list(model)                      the smallest requests
    files           open_files(model, http)                                                uploads for requests
    cached_contents open_cached_contents(model, http, kms_key_name)                        heads of prompts

What an API differs by besides is in the class of the model in `spec.model`: key, address and price (`api`), the
parameters and files that it takes (`parameters`, `media`), and how the tokens of files are counted
(`media_counting`, by a function in `media_tokens`).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from airflow_provider_llmbeam.spec.model import Model

Part = Literal["client", "embeddings", "batch_format", "batch", "probe", "files", "cached_contents"]


def part_of(model: Model, part: Part) -> Any:
    """Returns a module of the family of a model; `None` if the family has no such part."""
    name = f"{__package__}.{model.type}.{part}"
    return None if find_spec(name) is None else import_module(name)
