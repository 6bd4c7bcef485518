"""Writes docs/reference/mistakes.md."""

from tests.mistakes.table import page
from tests.mistakes.test_page import PAGE

PAGE.write_text(page())
