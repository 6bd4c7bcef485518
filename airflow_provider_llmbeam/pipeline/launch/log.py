"""What a job writes to its log, without secrets."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from airflow_provider_llmbeam.pipeline.secrets import known_secrets
from airflow_provider_llmbeam.redaction import redact


class Redactor:
    """Redacts what this process writes for people.

    Attributes:
        variables: Variables that hold secrets, besides those whose names say so; known with the spec.
    """

    def __init__(self) -> None:
        self.variables: Sequence[str] = ()

    def __call__(self, text: str) -> str:
        """Returns the text without the secrets of the environment, which may have grown since the last call."""
        return redact(text, known_secrets(self.variables))


class _RedactingFormatter(logging.Formatter):
    def __init__(self, line: str, redactor: Redactor) -> None:
        super().__init__(line, datefmt="%H:%M:%S")
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, and the traceback if there is one, without secrets."""
        return self._redactor(super().format(record))


def configure_logging(redactor: Redactor, *, with_time: bool) -> None:
    """Writes the log lines of this package to standard error.

    Args:
        redactor: Redacts each line.
        with_time: Whether lines begin with the time.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_RedactingFormatter("%(asctime)s %(message)s" if with_time else "%(message)s", redactor))
    handler.addFilter(_is_no_message_of_a_job)
    logging.basicConfig(level=logging.ERROR, handlers=[handler])
    for name in ("llmbeam", "airflow_provider_llmbeam"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # its errors are raised, too
    logging.getLogger("apache_beam.runners.dataflow.dataflow_runner").setLevel(logging.INFO)  # messages of the job


def _is_no_message_of_a_job(record: logging.LogRecord) -> bool:
    """Leaves out what Beam 2.77 logs of a job service (`PipelineResult.wait_until_finish`) and raises again."""
    return not (record.name == "root" and record.module == "portable_runner")
