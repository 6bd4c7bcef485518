"""The models of the emulated cloud: hosted by the Gemini API and by OpenAI, in Model Garden, and on the hub."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_GEMMA3 = ("gemma-3-270m", "gemma-3-1b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b")
# Seen in deployments that others have published (November 2026); Google's own list was not read.
_GEMMA4 = ("gemma-4-12b-it", "gemma-4-26b-a4b-it", "gemma-4-31b-it")
# Publisher, model, versions.
_GARDEN: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("google", "gemma3", tuple(f"{size}-{kind}" for size in _GEMMA3 for kind in ("it", "pt"))),
    ("google", "gemma4", _GEMMA4),
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

# Names of the price list (`spec.model.price`) and older ones; not compared with the providers' lists of today.
_GEMINI = frozenset(
    {
        *("gemini-2.0-flash", "gemini-2.0-flash-lite", "gemini-2.5-flash", "gemini-2.5-flash-lite"),
        *("gemini-2.5-pro", "gemini-3-flash", "gemini-3-pro", "gemini-3.1-flash-lite", "gemini-3.1-pro"),
        *("gemini-3.5-flash", "gemini-3.5-flash-lite", "gemini-3.8-flash"),
        *("gemini-flash", "gemini-flash-lite", "gemini-pro"),  # with `-latest`
        *("gemma-3-1b-it", "gemma-3-4b-it", "gemma-3-12b-it", "gemma-3-27b-it"),
        *("gemma-3n-e2b-it", "gemma-3n-e4b-it"),
    }
)
_GEMINI_EMBEDDINGS = frozenset(
    {
        *("gemini-embedding-001", "gemini-embedding-2", "text-embedding-004", "text-embedding-005"),
        "text-multilingual-embedding-002",
    }
)
_OPENAI = frozenset(
    {
        *("gpt-3.5-turbo", "gpt-4-turbo", "gpt-4.1", "gpt-4.1-mini", "gpt-4.1-nano", "gpt-4o", "gpt-4o-mini"),
        *("gpt-5", "gpt-5-mini", "gpt-5-nano", "gpt-5-pro", "gpt-5.1", "o1", "o3", "o3-mini", "o3-pro", "o4-mini"),
    }
)
_OPENAI_EMBEDDINGS = frozenset({"text-embedding-3-large", "text-embedding-3-small", "text-embedding-ada-002"})
_GEMINI_VERSION = re.compile(r"-(\d{3}|latest|(preview|exp)(-\d[\d-]*)?)$")
_OPENAI_VERSION = re.compile(r"-\d{4}-\d{2}-\d{2}$")


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


def is_gemini(name: str, *, embeds: bool = False) -> bool:
    """Returns whether the Gemini API has a model, in one of its versions."""
    known = _GEMINI_EMBEDDINGS if embeds else _GEMINI
    return name in known or _GEMINI_VERSION.sub("", name) in known


def gemini_names() -> list[str]:
    """Returns the names of the models that the Gemini API lists."""
    return sorted(_GEMINI | _GEMINI_EMBEDDINGS)


def is_openai(name: str, *, embeds: bool = False) -> bool:
    """Returns whether a server with the OpenAI API has a model: one of OpenAI, or one of the hub."""
    known = _OPENAI_EMBEDDINGS if embeds else _OPENAI
    return name in known or _OPENAI_VERSION.sub("", name) in known or is_on_hub(name)


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
