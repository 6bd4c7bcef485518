from __future__ import annotations

import logging

import pytest

from airflow_provider_llmbeam.pipeline.launch.log import Redactor, configure_logging


def test_a_line_of_the_log_has_no_secret_and_moves_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-nobody")
    root = logging.getLogger()
    level = root.level
    monkeypatch.setattr(root, "handlers", [])
    configure_logging(Redactor(), with_time=False)
    root.setLevel(level)
    (handler,) = root.handlers
    quoted = "refused \x1b[2J\u202edeen\u202c for a-key-of-nobody\rdone"
    line = handler.format(logging.makeLogRecord({"msg": "%s", "args": (quoted,)}))
    assert line == "refused ␛[2J⟨202E⟩deen⟨202C⟩ for ***␍done"
