"""The head that all prompts of a job have in common: their templates up to the first column of a row. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from jinja2 import nodes

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.tokens import estimate_tokens
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.prompt import PromptTemplate
from airflow_provider_llmbeam.spec.prompt.names import uses_row
from airflow_provider_llmbeam.spec.prompt.template import RowEnvironment

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
        name: Name of the cached content.
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
