"""What a search engine reads of the published documentation."""

from __future__ import annotations

import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

CONF = Path(__file__).resolve().parents[2] / "docs" / "conf.py"
NAMESPACE = "{http://www.sitemaps.org/schemas/sitemap/0.9}"


def test_the_sitemap_lists_each_page_once_under_the_address_of_the_newest_version(monkeypatch):
    monkeypatch.setenv("LLMBEAM_DOCS_URL", "https://docs.example.com/stable/")
    conf = runpy.run_path(str(CONF))
    tree = ET.fromstring(conf["make_sitemap"](conf["html_baseurl"], {"spec/a&b", "index"}))
    found = [place.text for place in tree.iter(f"{NAMESPACE}loc")]
    assert found == [
        "https://docs.example.com/stable/index.html",
        "https://docs.example.com/stable/spec/a&b.html",
    ]


def test_a_page_has_no_canonical_address_where_none_is_set(monkeypatch):
    monkeypatch.delenv("LLMBEAM_DOCS_URL", raising=False)
    assert runpy.run_path(str(CONF))["html_baseurl"] == ""
