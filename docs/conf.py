"""Sphinx configuration of the documentation; `scripts/docs` builds it.

The build needs no network: intersphinx, which fetches the inventories of Airflow and Beam, is not used, so names
of their classes are text without a link.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from xml.sax.saxutils import escape

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sphinx.application import Sphinx

import airflow_provider_llmbeam
from airflow_provider_llmbeam import spec
from airflow_provider_llmbeam.spec.fields.docstring import documented_fields

ROOT = Path(__file__).resolve().parents[1]

project = "airflow-provider-llmbeam"
version = release = airflow_provider_llmbeam.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
smartquotes_action = "D"  # dashes; quotes belong to values
default_role = "code"  # docstrings write `name`, as Markdown does
html_theme = "furo"
html_title = f"{project} {version}"
# Address of the newest version where the pages are published, with a slash at its end: canonical links and the
# sitemap name it in every version.
html_baseurl = os.environ.get("LLMBEAM_DOCS_URL", "")
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_search_scorer = str(ROOT / "docs" / "search_scorer.js")
html_show_sphinx = False
html_show_copyright = False
html_domain_indices = False

myst_heading_anchors = 4

autodoc_typehints = "none"
autodoc_member_order = "bysource"
maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Templated", "XCom", ("Fields", "params_style")]

# Names of Airflow, Beam and the standard library, and those that a docstring writes without their module.
nitpick_ignore_regex = [("py:.*", r"(?!airflow_provider_llmbeam\.|llmbeam_sandbox\.).*")]


def _kind(annotation: Any) -> str:
    """Text of a type: `Annotated[int, Ge(1)] | None` is 'int ≥ 1 or None'."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation in (None, NoneType):
        return "None"
    if origin is Annotated:
        return _kind(parts[0]) + _bounds(parts[1:])
    if origin in (Union, UnionType):
        return " or ".join(_kind(part) for part in parts)
    if origin is Literal:
        return " or ".join(repr(part) for part in parts)
    if origin is not None:
        return f"{origin.__name__}[{', '.join('…' if part is Ellipsis else _kind(part) for part in parts)}]"
    return getattr(annotation, "__name__", str(annotation))


def _bounds(metadata: Any) -> str:
    flat = [part for each in metadata for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
    signs = ((Ge, "≥"), (Gt, ">"), (Le, "≤"), (Lt, "<"))
    found = [
        f"{sign} {getattr(each, kind.__name__.lower()):,}"
        for each in flat
        for kind, sign in signs
        if isinstance(each, kind)
    ]
    return f" {' and '.join(found)}" if found else ""


def _field(model: type[BaseModel], name: str) -> str:
    """Type and default of a field, e.g. 'float > 0, default 120.0'."""
    field = model.model_fields[name]
    kind = _kind(field.annotation) + _bounds(field.metadata)
    if field.is_required():
        return f"{kind}, required"
    default = field.get_default(call_default_factory=True)
    shown = f"{type(default).__name__}()" if isinstance(default, BaseModel) else repr(default)
    return f"{kind}, default {shown}"


def _with_all_fields(lines: list[str], model: type[BaseModel]) -> list[str]:
    """Replaces `Attributes:` of a spec by every field, inherited ones included, with type and default."""
    start = next((index for index, line in enumerate(lines) if line.strip() == "Attributes:"), len(lines))
    rest = next((i for i in range(start + 1, len(lines)) if re.match(r"\w", lines[i])), len(lines))
    texts = {**documented_fields(model.__doc__), "type": ["Selects this class where a dict is given."]}
    if missing := model.model_fields.keys() - texts:
        raise ValueError(f"{model.__module__}.{model.__name__} does not document {sorted(missing)}.")
    fields = ["Fields:"]
    named = [name for name in texts if name in model.model_fields]
    for name in sorted(named, key=lambda name: not model.model_fields[name].is_required()):
        first, *more = texts[name]
        fields += [f"    {name} ({_field(model, name)}): {first}", *(f"        {line}" for line in more)]
    return [*lines[:start], *fields, "", *lines[rest:]]


def process_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Completes the docstrings of specs, and links `spec.Limits` to its class."""
    if isinstance(obj, type) and issubclass(obj, BaseModel):
        lines[:] = _with_all_fields(lines, obj)
    if what == "module":  # what is indented in it is a drawing
        text = "\n".join(lines)
        lines[:] = re.sub(r"\n\n(?=    )", "\n\n::\n\n", text, count=1).splitlines()
    link = r":py:class:`spec.\1 <airflow_provider_llmbeam.spec.\1>`"
    lines[:] = [re.sub(rf"`spec\.({'|'.join(spec.__all__)})`", link, line) for line in lines]


def process_signature(app: Sphinx, what: str, name: str, obj: Any, *_: Any) -> tuple[str, None] | None:
    """Leaves out the signature of a spec: its fields follow, with their defaults."""
    return ("", None) if isinstance(obj, type) and issubclass(obj, BaseModel) else None


def write_how_to_pages(app: Sphinx) -> None:
    """Writes a page for each Dag in `dags/`, from its docstring and its source."""
    folder = Path(app.srcdir, "how-to")
    folder.mkdir(exist_ok=True)
    pages = {dag.stem: _how_to_page(dag) for dag in sorted((ROOT / "dags").glob("*.py"))}
    for old in folder.glob("*.md"):
        if old.stem not in pages:
            old.unlink()
    for name, page in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != page:  # an unchanged page is not built again
            path.write_text(page)


def _how_to_page(dag: Path) -> str:
    _, docstring, code = dag.read_text().split('"""', 2)
    title, _, _ = re.sub(r"[.:]\s", "\n", docstring, count=1).partition("\n")
    first = 1 + dag.read_text()[: -len(code.lstrip())].count("\n")
    docstring = re.sub(r"^docs/(\S+\.md)", r"[\1](../\1)", docstring, flags=re.MULTILINE)
    source = f"```{{literalinclude}} ../../dags/{dag.name}\n:lines: {first}-\n:caption: dags/{dag.name}\n```"
    return f"# {title}\n\n{docstring.strip()}\n\n{source}\n"


def write_files_for_assistants(app: Sphinx, error: Exception | None) -> None:
    """Publishes llms.txt, the skill, and the JSON Schema of a spec beside the pages."""
    if error is None and app.builder.format == "html":
        output = Path(app.outdir)
        shutil.copy(Path(app.srcdir, "llms.txt"), output)
        shutil.copytree(ROOT / "skills", output / "skills", dirs_exist_ok=True)
        (output / "job.schema.json").write_text(json.dumps(spec.JobSpec.json_schema(), indent=1) + "\n")


def link_guide_of_source(app: Sphinx, page: str, content: list[str]) -> None:
    """Links the guide of a Dag where a page links its file."""
    to_docs = "../" * page.count("/")
    content[:] = [_with_guides(text, f"{to_docs}../", to_docs) for text in content]


def link_guide_of_include(app: Sphinx, path: Path, page: str, content: list[str]) -> None:
    """Does the same for README.md, whose links begin in its own folder."""
    content[:] = [_with_guides(text, "", "docs/") for text in content]


def _with_guides(text: str, to_root: str, to_docs: str) -> str:
    return re.sub(rf"\]\({re.escape(to_root)}dags/(\w+)\.py\)", rf"]({to_docs}how-to/\1.md)", text)


def make_sitemap(base_url: str, pages: Iterable[str]) -> str:
    """Returns the sitemap of pages, for search engines (sitemaps.org/protocol.html)."""
    lines = [f"<url><loc>{escape(f'{base_url}{page}.html')}</loc></url>" for page in sorted(pages)]
    begin = '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
    return "\n".join([begin, *lines, "</urlset>\n"])


def write_sitemap(app: Sphinx, error: Exception | None) -> None:
    """Writes the sitemap if the pages have an address."""
    if html_baseurl and error is None:
        Path(app.outdir, "sitemap.xml").write_text(make_sitemap(html_baseurl, app.env.found_docs))


def setup(app: Sphinx) -> None:
    """Connects the functions above; Sphinx calls it."""
    app.connect("builder-inited", write_how_to_pages)
    app.connect("autodoc-process-docstring", process_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", process_signature)
    app.connect("source-read", link_guide_of_source)
    app.connect("include-read", link_guide_of_include)
    app.connect("build-finished", write_files_for_assistants)
    app.connect("build-finished", write_sitemap)
