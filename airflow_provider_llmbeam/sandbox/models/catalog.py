"""The open models of the emulated cloud: in Model Garden, and on the hub."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_GEMMA3 = ("gemma-3-270m", "gemma-3-1b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b")
# Publisher, model, versions.
_GARDEN: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("google", "gemma3", tuple(f"{size}-{kind}" for size in _GEMMA3 for kind in ("it", "pt"))),
    ("google", "gemma2", ("gemma-2-2b-it", "gemma-2-9b-it", "gemma-2-27b-it")),
    ("meta", "llama3-3", ("llama-3.3-70b-instruct",)),
    ("qwen", "qwen3", ("qwen3-4b", "qwen3-8b", "qwen3-32b")),
)
# Source: the models' pages; those of Google and Meta require consent.
_GATED = re.compile(r"(google/(embedding|med|code|pali)?gemma|meta-llama/)", re.IGNORECASE)
_HUB = re.compile(
    r"(google/(embedding|med|code|pali)?gemma|meta-llama/(Meta-)?Llama|Qwen/Qwen|mistralai/M|microsoft/[Pp]hi"
    r"|deepseek-ai/|openai/gpt-oss|HuggingFaceTB/SmolLM|hf-internal-testing/)[\w.-]*"
)
_TOKENS = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The model that a container serves.

    Attributes:
        model: Source of the weights: an id on the hub, a path or a bucket.
        name: Model name for clients.
        failure: Message in the container's log if it exits instead of serving; "" if it serves.
    """

    model: str
    name: str
    failure: str = ""


def is_gated(model: str) -> bool:
    """Returns whether the hub requires a token for a model."""
    return _GATED.match(model) is not None


def is_on_hub(model: str) -> bool:
    """Returns whether the hub has a model."""
    return _HUB.fullmatch(model) is not None


def garden_model(name: str) -> str | None:
    """Returns the hub id of Model Garden's `publishers/P/models/M@VERSION`; None when it is unknown."""
    found = re.fullmatch(r"publishers/([^/]+)/models/([^/@]+)(?:@(.+))?", name)
    for publisher, model, versions in _GARDEN:
        if found is None or (found[1], found[2]) != (publisher, model):
            continue
        version = found[3] or versions[0]
        return f"{publisher}/{version}" if version in versions else None
    return None


def weights_failure(model: str, *, has_token: bool) -> str:
    """Returns the log message of a container that cannot download a model's weights; "" if it can.

    Source of the message: github.com/vllm-project/semantic-router/issues/817.
    """
    if "://" in model or model.startswith(("/", ".")):
        return ""
    if not is_on_hub(model):
        return (
            f"Repository Not Found for url: https://huggingface.co/{model}/resolve/main/config.json. "
            f"{model} is not a local folder and is not a valid model identifier."
        )
    if is_gated(model) and not has_token:
        return (
            f"Cannot access gated repo for url https://huggingface.co/{model}/resolve/main/config.json. Access "
            f"to model {model} is restricted. You must have access to it and be authenticated to access it. "
            "Please log in."
        )
    return ""


def read_container(spec: Mapping[str, Any]) -> Served:
    """Returns the model that a vLLM container serves, from its command, arguments and environment.

    Args:
        spec: `containerSpec` of Vertex AI or an item of `containers` of Cloud Run.
    """
    arguments = [str(argument) for argument in (*(spec.get("command") or ()), *(spec.get("args") or ()))]
    environment = {str(one.get("name")): one for one in spec.get("env") or ()}
    model = _option(arguments, "--model") or _after(arguments, "serve")
    model = model or str(environment.get("MODEL_ID", {}).get("value") or "")
    has_token = any(
        environment[name].get("value") or environment[name].get("valueSource")
        for name in _TOKENS & environment.keys()
    )
    name = _option(arguments, "--served-model-name") or model
    return Served(model=model, name=name, failure=weights_failure(model, has_token=has_token) if model else "")


def _option(words: Sequence[str], name: str) -> str:
    for index, word in enumerate(words):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name:
            return "".join(words[index + 1 : index + 2])
    return ""


def _after(words: Sequence[str], name: str) -> str:
    following = words[words.index(name) + 1 :][:1] if name in words else []
    return "".join(following)
