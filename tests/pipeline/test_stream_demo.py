"""`scripts/demo --stream`."""

from __future__ import annotations

import re

import demo_stream
import pytest


@pytest.mark.full
def test_the_demo_answers_each_question_once_beside_a_kill(monkeypatch, capsys):
    monkeypatch.setattr(demo_stream, "_SECONDS", 2.0)
    assert demo_stream.main() == 0
    printed = capsys.readouterr().out
    asked, once = map(int, re.findall(r"(\d+) = (\d+) answered once \+ 0 lost", printed)[0])
    assert asked == once > 0
