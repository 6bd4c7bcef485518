"""docs/evidence/privacy.md: the recall and precision of each kind."""

from __future__ import annotations

import re
from pathlib import Path

from tests.personal_data import KINDS, planted_rows, scores_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "evidence" / "privacy.md").read_text()
#: Rows of each kind, a tenth of those of the page.
ROWS = 50
#: Largest difference by chance: a recall of 95 % has a standard error of 3 % here.
TOLERANCE = 0.08


def test_recall_and_precision_are_those_of_the_page():
    said = {
        kind: (float(recall) / 100, float(precision) / 100)
        for kind, recall, precision in re.findall(r"^\| `(\w+)` \| ([\d.]+)% \| ([\d.]+)% \|$", PAGE, re.MULTILINE)
    }
    assert said.keys() == KINDS.keys()
    found = scores_of(planted_rows(ROWS))
    for kind, (recall, precision) in said.items():
        assert abs(found.recall(kind) - recall) < TOLERANCE, kind
        assert abs(found.precision(kind) - precision) < TOLERANCE, kind
