"""The head that all prompts of a job have in common, and what it costs to store it. Pure.

The head is what the templates of a job yield before the first column of a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from jinja2 import nodes

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.tokens import estimate_tokens
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.prompt import PromptTemplate
from airflow_provider_llmbeam.spec.prompt.names import uses_row
from airflow_provider_llmbeam.spec.prompt.template import RowEnvironment

#: Minimum size of a cached content in tokens. Source: ai.google.dev/gemini-api/docs/caching (2026-09)
MIN_TOKENS_OF_GEMINI_2, MIN_TOKENS = 2_048, 4_096

#: Price of storage, in US dollars per million tokens and 3,600 s. Source: ai.google.dev/gemini-api/docs/pricing
#: (2026-09); the list of `genai-prices` has none.
_PRO_STORAGE_USD, _FLASH_STORAGE_USD, _REDUCED_STORAGE_USD = 4.50, 1.00, 0.50
_REDUCED_MODEL, _REDUCED_UNTIL = "gemini-3.8-flash", datetime(2027, 1, 1, tzinfo=UTC)

_NodeT = TypeVar("_NodeT", bound=nodes.Node)


@dataclass(frozen=True, slots=True)
class PromptHead:
    """The beginning of all prompts of a job. A cached content has no schema of the answer, so neither has it.

    Attributes:
        text: Beginning of the user message.
        system: System instruction, or `None`.
    """

    text: str
    system: str | None = None

    @property
    def tokens(self) -> int:
        """Estimated number of tokens."""
        return sum(estimate_tokens(text) for text in (self.text, self.system) if text)

    def rest_of(self, prompt: Prompt) -> str | None:
        """Returns the text that is sent after this head, or `None` if the prompt does not begin with it."""
        if prompt.system != self.system or not prompt.text.startswith(self.text):
            return None
        if prompt.media and self.text:  # files are sent before the text
            return None
        return prompt.text[len(self.text) :] or None


@dataclass(frozen=True, slots=True)
class CachedHead:
    """A head that the provider has stored.

    Attributes:
        name: Name of the cached content; empty for a head that requests mark.
        head: The head.
    """

    name: str
    head: PromptHead


def head_of(template: PromptTemplate) -> PromptHead | None:
    """Returns the head of the prompts of a template, or `None` if they have none.

    A system instruction that depends on the row leaves none: it comes before the text, and a request that uses a
    cached content cannot have one of its own.
    """
    environment = RowEnvironment()
    scope = {"variables": dict(template.variables)}
    try:
        system = None
        if template.system:
            if uses_row(template.system) or _is_random(environment.parse(template.system)):
                return None
            system = valid_text(environment.from_string(template.system).render(scope))
        text = "" if template.media else valid_text(_constant(environment, template.template, scope))
    except Exception:  # noqa: BLE001 - code of the user; each row has the error in its own dead letter
        return None
    return PromptHead(text, system or None) if text or system else None


def min_tokens(model: str) -> int:
    """Returns the minimum size of a cached content of a model, in tokens."""
    return MIN_TOKENS_OF_GEMINI_2 if re.search(r"(^|/)gemini-2\b", model) else MIN_TOKENS


def storage_usd(model: str, tokens: int, seconds: float, at: datetime) -> float | None:
    """Returns the cost of storage in US dollars; `None` if the price of the model is not known.

    Args:
        model: Name of the model.
        tokens: Size of the cached content, in tokens.
        seconds: Time for which it is stored, in seconds.
        at: Time of its creation.
    """
    name = model.rpartition("/")[2]
    if not name.startswith("gemini-"):
        return None
    if name.startswith(_REDUCED_MODEL) and at < _REDUCED_UNTIL:
        rate = _REDUCED_STORAGE_USD
    elif "-flash" in name:
        rate = _FLASH_STORAGE_USD
    elif "-pro" in name:
        rate = _PRO_STORAGE_USD
    else:
        return None
    return tokens / 1e6 * seconds / 3600 * rate


def _constant(environment: RowEnvironment, text: str, scope: Mapping[str, object]) -> str:
    """Renders the nodes of a template before the first one that depends on the row."""
    root = environment.parse(text)
    constant: list[nodes.Node] = []
    for node in _pieces(root):
        if _depends_on_row(node):
            break
        constant.append(node)
    environment.begin_row()
    return environment.from_string(nodes.Template(constant, lineno=1)).render(scope)


def _pieces(root: nodes.Template) -> Iterator[nodes.Node]:
    """Yields the nodes of a template, each text and expression by itself."""
    for node in root.body:
        if isinstance(node, nodes.Output):
            for piece in node.nodes:
                yield nodes.Output([piece], lineno=node.lineno)
        else:
            yield node


def _depends_on_row(node: nodes.Node) -> bool:
    return any(name.name == "row" for name in _with_itself(node, nodes.Name)) or _is_random(node)


def _is_random(node: nodes.Node) -> bool:
    return any(each.name == "random" for each in _with_itself(node, nodes.Filter))


def _with_itself(node: nodes.Node, kind: type[_NodeT]) -> Iterator[_NodeT]:
    if isinstance(node, kind):
        yield node
    yield from node.find_all(kind)
