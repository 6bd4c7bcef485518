"""Tests that the pages of the documentation are reachable, and that their links lead somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import llmbeam_sandbox
import pytest

import airflow_provider_llmbeam
from airflow_provider_llmbeam import spec
from airflow_provider_llmbeam.provider_info import get_provider_info
from airflow_provider_llmbeam.spec import evaluation

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: The folder that the package is in: another one where it is installed from a wheel.
INSTALLED = Path(airflow_provider_llmbeam.__file__).parents[1]
#: Folders that scripts/docs makes.
BUILT = {"_build", "how-to"}
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if BUILT.isdisjoint(path.relative_to(DOCS).parts)]
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
ALIASES = {"Endpoint", "Metric", "Model", "Runner", "Sink", "Source"}


def in_table_of_contents():
    """Entries of all tables of contents, from `docs/` on."""
    entries = []
    for page in PAGES:
        for text in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
            lines = [line for line in text.splitlines() if line and not line.startswith(":")]
            names = [line[line.index("<") + 1 : -1] if line.endswith(">") else line for line in lines]
            entries += [(page.parent.relative_to(DOCS) / name).as_posix() for name in names]
    return entries


def pages_of(entry):
    """Names of the pages that an entry of the table of contents stands for."""
    return [path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES if path.match(f"docs/{entry}.md")]


def without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def links(path):
    """Targets of the links of a page that lead into this repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "`", without_code(path.read_text())))
    return [target for target in targets if not re.match(r"\w+:", target)]


def anchors(path):
    """Anchors of the headings of a page, as GitHub and MyST make them; of the pages that it includes, too."""
    text = path.read_text()
    included = re.findall(r"^```\{include\} (\S+)$", text, re.MULTILINE)
    own = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    }
    return own.union(*(anchors(path.parent / each) for each in included))


def is_dead(page, link):
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if target.parent == DOCS / "how-to":  # made of a Dag
        target = ROOT / "dags" / f"{target.stem}.py"
    elif target.is_relative_to(ROOT / "airflow_provider_llmbeam"):
        target = INSTALLED / target.relative_to(ROOT)
    elif target.is_relative_to(ROOT / "sandbox" / "llmbeam_sandbox"):
        target = INSTALLED / target.relative_to(ROOT / "sandbox")
    return not target.exists() or (anchor and anchor not in anchors(target))


def test_every_page_is_in_the_table_of_contents_once():
    pages = [path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES if path.name != "index.md"]
    assert sorted(page for entry in in_table_of_contents() for page in pages_of(entry)) == sorted(pages)
    assert "how-to/*" in in_table_of_contents()


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_to_a_file_and_a_heading_that_exist(page):
    assert [link for link in links(page) if is_dead(page, link)] == []


def test_a_missing_file_and_a_missing_heading_are_dead_links():
    assert not is_dead(DOCS / "cost.md", "flex.md#priority")
    assert is_dead(DOCS / "cost.md", "flex.md#cheap")
    assert is_dead(DOCS / "cost.md", "flexible.md")
    assert is_dead(DOCS / "cost.md", "how-to/no_such_dag.md")


def classes_for_dags():
    """Public classes of the modules that Airflow lists for this provider."""
    info = get_provider_info()
    for kind in ("operators", "sensors", "hooks", "triggers"):
        for module in info[kind][0]["python-modules"]:
            tree = ast.parse((INSTALLED / f"{module.replace('.', '/')}.py").read_text())
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield f"{module}.{node.name}"


def test_the_reference_has_every_public_class():
    written = "\n".join(path.read_text() for path in (DOCS / "reference").rglob("*.md"))
    documented = set(re.findall(r"^\.\. auto(?:class|function):: (\S+)$", written, re.MULTILINE))
    package = "airflow_provider_llmbeam"
    public = {f"{package}.spec.{name}" for name in set(spec.__all__) - ALIASES}
    public |= {f"{package}.spec.evaluation.{name}" for name in set(evaluation.__all__) - ALIASES}
    public |= {f"llmbeam_sandbox.{name}" for name in llmbeam_sandbox.__all__}
    assert {*public, *classes_for_dags()} - documented == set()
