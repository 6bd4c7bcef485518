"""One sweep: finds what is due, removes it, and reports what could not be removed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.polling.poller import TaskLog

#: Why something that was due was not removed: it is in use again, or somebody else has removed it.
Reason = Literal["kept", "gone"]


@dataclass(frozen=True, slots=True)
class SweepManifest:
    """Result of a sweep. With `dry_run` the first two lists have what is due.

    Attributes:
        cancelled: Names of cancelled jobs.
        deleted: Names of deleted resources, ended jobs and files; of OpenAI, of batches whose result files were
            deleted.
        failed: Sentences about what could not be cancelled, deleted or listed.
        kept: Names of what is not due.
        foreign: Names of resources and jobs of other deployments, which are left alone.
        dry_run: Whether nothing was changed.
    """

    cancelled: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    dry_run: bool = False

    def plain(self) -> dict[str, Any]:
        """Returns the manifest as plain JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something that is due.

    Attributes:
        names: Names in the manifest.
        remove: Removes it, or returns why not; raises an error if it may be left.
        failure: Beginning of the message if it may be left; the error follows.
        warning: Line for the log before it is removed; empty if `remove` writes its own.
        request: Requests the removal, if that takes time.
        is_job: Whether it is cancelled rather than deleted: before the rest, which it may use.
    """

    names: tuple[str, ...]
    remove: Callable[[], Reason | None]
    failure: str = ""
    warning: str = ""
    request: Callable[[], object] | None = None
    is_job: bool = False


class Sweep:
    """One sweep; a failure does not stop the rest, which bills until it is removed.

    Args:
        log: Receives one line for each change and each failure.
        dry_run: Whether to change nothing.
    """

    def __init__(self, log: TaskLog, *, dry_run: bool) -> None:
        self.manifest = SweepManifest(dry_run=dry_run)
        self._log = log

    def run(self, sources: Iterable[Callable[[Sweep], Iterable[Leftover]]]) -> SweepManifest:
        """Removes what is due.

        Args:
            sources: Each returns what is due at a service, and adds what is kept to `manifest`; called in this
                order.
        """
        due: list[Leftover] = []
        for source in sources:
            with self.collect_errors():
                due.extend(source(self))
        jobs = [leftover for leftover in due if leftover.is_job]
        others = [leftover for leftover in due if not leftover.is_job]
        if self.manifest.dry_run:
            self.manifest.cancelled.extend(name for leftover in jobs for name in leftover.names)
            self.manifest.deleted.extend(name for leftover in others for name in leftover.names)
            return self.manifest
        for leftover in jobs:
            self._remove(leftover, self.manifest.cancelled)
        # Every removal is requested before the first is waited for: each endpoint bills until its removal.
        for leftover in others:
            if leftover.request is not None:
                with suppress(Exception):  # `remove` requests it again
                    leftover.request()
        for leftover in others:
            self._remove(leftover, self.manifest.deleted)
        return self.manifest

    @contextmanager
    def collect_errors(self, failure: str = "") -> Iterator[None]:
        """Adds an error to the manifest and the log, after `failure`, and goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - of a secrets backend, or a fault of this package
            message = str(error) if isinstance(error, LLMBeamError) else f"{type(error).__name__}: {error}"
            self.fail(f"{failure} {message}".lstrip())

    def fail(self, sentence: str) -> None:
        """Adds a failure to the manifest and the log."""
        self._log.log(logging.ERROR, "%s", sentence)
        self.manifest.failed.append(sentence)

    def _remove(self, leftover: Leftover, removed: list[str]) -> None:
        if leftover.warning:
            self._log.warning("%s", leftover.warning)
        with self.collect_errors(leftover.failure):
            match leftover.remove():
                case None:
                    removed.extend(leftover.names)
                case "kept":
                    self.manifest.kept.extend(leftover.names)
