"""The names that a template may use: `row` and `variables`. Airflow renders no template of a prompt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

from jinja2 import meta, nodes

from airflow_provider_llmbeam.spec.fields.suggestion import nearest
from airflow_provider_llmbeam.spec.prompt.template import RowEnvironment

ROW, VARIABLES = "row", "variables"
#: Names that a Dag's templates have and these do not. Source: `airflow.sdk.definitions.context.Context`, 3.1.
_OF_AIRFLOW = frozenset(
    {
        *("conn", "dag", "dag_run", "data_interval_end", "data_interval_start", "ds", "ds_nodash"),
        *("expanded_ti_count", "inlets", "logical_date", "macros", "map_index_template", "outlets", "params"),
        *(
            "prev_data_interval_end_success",
            "prev_data_interval_start_success",
            "prev_start_date_success",
            "run_id",
        ),
        *("start_date", "task", "task_instance", "task_instance_key_str", "ti", "triggering_asset_events", "ts"),
        *("ts_nodash", "ts_nodash_with_tz", "try_number", "var", "execution_date", "next_ds", "prev_ds"),
    }
)
#: A column in single braces, or with another sign of a placeholder, which is sent as it is.
_SINGLE_BRACES = re.compile(r"(?<!\{)[$#]?\{\s*row\s*(?:\.\s*(\w+)|\[\s*['\"](\w+)['\"]\s*\])\s*\}(?!\})")
#: Other ways in which a column may have been meant.
_MEANT = (
    re.compile(r"\brow\s*(?:\.\s*(\w+)|\[\s*['\"](\w+)['\"]\s*\])"),
    re.compile(r"[$#]?\{+\s*(\w+)\s*\}+"),
    re.compile(r"%\((\w+)\)s"),
    re.compile(r"<(?:<)?(\w+)>(?:>)?"),
)
_GUARDS = frozenset({"defined", "undefined", "default", "d"})


def unknown_name(text: str) -> str | None:
    """Returns the fault of a template that uses an unknown name, as the second half of a sentence.

    Args:
        text: A template that can be compiled.
    """
    tree, names = _parse(text)
    unknown = sorted(names - {ROW, VARIABLES} - _environment().globals.keys())
    if unknown:
        return _not_here(unknown[0], _longest(tree, unknown[0]))
    for found in _SINGLE_BRACES.finditer("".join(data.data for data in tree.find_all(nodes.TemplateData))):
        column = found[1] or found[2]
        return f"{found[0]!r} would be sent as it is; did you mean `{{{{ row.{column} }}}}`?"
    return None


def uses_row(text: str) -> bool:
    """Returns whether a template that can be compiled uses the row."""
    return ROW in _parse(text)[1]


def row_columns(text: str) -> tuple[str, ...]:
    """Returns the columns that a template that can be compiled names, in their order, each once."""
    tree, _ = _parse(text)
    parts: list[Any] = [*tree.find_all((nodes.Getattr, nodes.Getitem))]
    names = (_key(node) for node in parts if isinstance(node.node, nodes.Name) and node.node.name == ROW)
    return tuple(dict.fromkeys(name for name in names if name is not None and not hasattr(dict, name)))


def no_column(text: str) -> str:
    """Returns the fault of a template without a column, as the second half of a sentence."""
    for pattern in _MEANT:
        if found := pattern.search(text):
            column = next(filter(None, found.groups()))
            return (
                "uses no column of `row`, so every row would have the same prompt; did you mean "
                f"`{{{{ row.{column} }}}}`?"
            )
    return (
        "uses no column of `row`, so every row would have the same prompt: write e.g. `{{ row.text }}`, or set "
        "`prompt.is_constant` if that is intended"
    )


def missing_variable(text: str, variables: Mapping[str, Any]) -> str | None:
    """Returns the fault of a template that uses a variable which is not given, as the second half of a sentence.

    One that the template tests may be missing: `is defined`, `default`, or anything done to all of `variables`.
    """
    tree, _ = _parse(text)
    parts: list[Any] = [*tree.find_all(nodes.Getattr), *tree.find_all(nodes.Getitem)]
    used = [node for node in parts if _is_variables(node.node)]
    if len(used) < sum(map(_is_variables, tree.find_all(nodes.Name))):
        return None
    guarded = {_key(node.node) for node in tree.find_all((nodes.Test, nodes.Filter)) if node.name in _GUARDS}
    for name in map(_key, used):
        if name is None or name in guarded or name in variables or hasattr(dict, name):
            continue
        hint = nearest(name, variables) if variables else ""
        return f"uses `variables.{name}`, which `prompt.variables` does not have{hint and f'; {hint}'}"
    return None


@cache
def _environment() -> RowEnvironment:
    return RowEnvironment()


@lru_cache(maxsize=8)
def _parse(text: str) -> tuple[nodes.Template, frozenset[str]]:
    """Returns a template, and the names that it looks up; each template of a prompt is asked for several times."""
    tree = _environment().parse(text)
    return tree, frozenset(meta.find_undeclared_variables(tree))


def _not_here(name: str, expression: str) -> str:
    if name in _OF_AIRFLOW:
        last = expression.rpartition(".")[2]
        return (
            f"has no `{name}`, as Airflow does not render it: put {{'{last}': '{{{{ {expression} }}}}'}} into "
            f"`prompt.variables` and write `{{{{ variables.{last} }}}}`"
        )
    return f"has no `{name}`; did you mean `{{{{ row.{name} }}}}`, or `{{{{ variables.{name} }}}}`?"


def _longest(tree: nodes.Template, name: str) -> str:
    found = [dotted for node in tree.find_all(nodes.Getattr) if (dotted := _dotted(node)).startswith(f"{name}.")]
    return max(found, key=len, default=name)


def _dotted(node: nodes.Node) -> str:
    parts = [*_attributes(node)]
    return ".".join(reversed(parts))


def _attributes(node: nodes.Node) -> Iterator[str]:
    while isinstance(node, nodes.Getattr):
        yield node.attr
        node = node.node
    yield node.name if isinstance(node, nodes.Name) else ""


def _is_variables(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name == VARIABLES


def _key(node: nodes.Node | None) -> str | None:
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        return node.arg.value
    return None
