"""docs/reference/mistakes.md is the table of the mistakes."""

from __future__ import annotations

from pathlib import Path

from tests.mistakes.table import page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "mistakes.md"


def test_the_page_lists_what_was_seen():
    """To write it: `python -m tests.mistakes`."""
    assert PAGE.read_text() == page()
