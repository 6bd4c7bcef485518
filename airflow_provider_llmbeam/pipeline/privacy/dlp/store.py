"""What was found in texts, kept without the texts, so that none is inspected and billed again."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.privacy.cipher import IV_BYTES, Cipher, cipher_of
from airflow_provider_llmbeam.pipeline.privacy.dlp.table import config_of
from airflow_provider_llmbeam.pipeline.privacy.finding import Cell, Finding, Inspected
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety.privacy import DlpDetector

_SUFFIX = ".jsonl"


class FindingStore:
    """The findings of a job and of those with the same cache, in files of JSON lines.

    A text has a name that only the secret of the placeholders makes, and that differs with what is searched.

    Args:
        uri: Directory of the files.
        detector: The detector.
        cipher: Makes the names.
    """

    def __init__(self, uri: str, detector: DlpDetector, cipher: Cipher) -> None:
        self._uri = uri
        self._cipher = cipher
        self._config = json.dumps(config_of(detector))

    def name_of(self, cell: Cell) -> str:
        """Returns the name of a text: the synthetic IV of its encryption, which is a keyed hash."""
        return self._cipher.seal(self._config, [cell.column, cell.text])[:IV_BYTES].hex()

    def write(self, found: Mapping[Cell, Inspected]) -> None:
        """Adds a file with what was found in texts, without those that could not be inspected."""
        lines = [
            json.dumps([self.name_of(cell), [[each.start, each.end, each.kind, each.score] for each in findings]])
            for cell, findings in found.items()
            if not isinstance(findings, str)
        ]
        if lines:
            content = "".join(f"{line}\n" for line in lines).encode()
            storage.replace(f"{self._uri}{uuid.uuid4().hex}{_SUFFIX}", content)

    def read(self) -> dict[str, tuple[Finding, ...]]:
        """Returns all findings, by the names of their texts."""
        return dict(entry for uri in storage.match(pattern_of(self._uri)) for entry in read_findings(uri))


def pattern_of(uri: str) -> str:
    """Returns the pattern of the files in a directory with findings."""
    return f"{uri}*{_SUFFIX}"


def read_findings(uri: str) -> Iterator[tuple[str, tuple[Finding, ...]]]:
    """Yields name and findings of each text of a file."""
    with storage.open_buffered(uri) as file:
        for line in file:
            name, findings = json.loads(line)
            yield name, tuple(Finding(*each) for each in findings)


def store_of(spec: JobSpec) -> FindingStore:
    """Returns the store of a job with a detector of type `dlp`.

    Raises:
        JobSpecError: There is no secret.
    """
    privacy = spec.safety.privacy
    assert privacy is not None
    assert privacy.dlp is not None
    return FindingStore(spec.paths.inspections_uri, privacy.dlp, cipher_of(privacy))
