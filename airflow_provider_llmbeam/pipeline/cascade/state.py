"""The calibration of a cascade as later runs find it, and what their audits add to it."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, field
from typing import cast

from pydantic import BaseModel, ConfigDict, ValidationError

from airflow_provider_llmbeam.engine.state_version import refuse_newer
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.cascade.audit import Audit, contradicts, count_audit_rows
from airflow_provider_llmbeam.pipeline.cascade.calibration import Calibration
from airflow_provider_llmbeam.pipeline.cascade.distilled.counts import DistilledCounts
from airflow_provider_llmbeam.spec.cascade import Cascade
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger("llmbeam")

#: Rows of later runs for each draw of a calibration without thresholds, until it is made again: draws are then a
#: twentieth of the rows, and `model` has to answer these in any case.
ROWS_PER_DRAW = 20


class StoredCalibration(BaseModel):
    """A calibration as later runs find it.

    Attributes:
        job: Name of the job that calibrated.
        made_at: Unix time.
        rows: Number of rows from which the sample was drawn.
        calibration: The calibration.
        paid: What was sent for it, see `report.paid_by_name`: also a later try of that job reports it.
        latency_seconds: Mean latency of each stage and of `model`, in seconds; `None` for one without answers.
        distilled: What its distilled stages have learned, by number.
        output_tokens: Mean output tokens of an answer of `model`.
        is_published: Whether that job has published: its rows alone are those of the guarantee.
        drifted: Names of distilled stages that keep another share of the rows of a later run.
        audits: What the audit of each later run has found, by name of the job; one that is run again counts once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = 1
    job: str
    made_at: float
    rows: int
    calibration: Calibration
    paid: dict[str, int] = {}
    latency_seconds: tuple[float | None, ...] = ()
    distilled: dict[int, DistilledCounts] = {}
    output_tokens: float = 0.0
    is_published: bool = False
    drifted: tuple[str, ...] = ()
    audits: dict[str, Audit] = {}

    @property
    def audit(self) -> Audit:
        """All audits together."""
        return sum(self.audits.values(), Audit())

    @property
    def rows_to_next(self) -> int:
        """Number of rows after which a calibration without thresholds is made again; 0 if it is due."""
        return max(ROWS_PER_DRAW * self.calibration.draws - self.audit.rows, 0)

    def is_of_try(self, spec: JobSpec) -> bool:
        """Whether this job, which has not published since, has calibrated: its rows are those of the sample."""
        return self.job == spec.name and not self.is_published

    def find_reason_to_repeat(self, target_agreement: float) -> str:
        """Returns why a run calibrates again; empty if it uses this calibration."""
        audit = self.audit
        if contradicts(audit, target_agreement):
            return (
                f"{audit.disagreements:,} of {audit.audited:,} audited rows disagree with `model`, which "
                f"contradicts `target_agreement` {target_agreement:g}"
            )
        if self.drifted:
            return f"{', '.join(self.drifted)} kept another share of the rows of the last run than of the sample"
        if not self.calibration.asked and not self.rows_to_next:
            return f"it has no thresholds, and {audit.rows:,} rows were answered since"
        return ""


@dataclass(frozen=True)
class RunCascade:
    """The cascade of a run.

    Attributes:
        calibration: The calibration; `None` if there is none.
        reason: Why `model` answers every row; empty if a stage is asked.
        is_guaranteed: Whether the rows are those from which the sample was drawn.
        made_at: Unix time of the calibration.
        rows: Number of rows at the calibration.
        audit_ratio: Share of the rows with the answer of a stage that `model` answers as well.
        audit: What the audits of earlier runs have found.
        spent_usd: Cost of its calibration in this run, in US dollars.
        distilled: What its distilled stages have learned, by number.
        is_repeated: Whether a run of this name has published: answers in its journal are not audited again.
    """

    calibration: Calibration | None
    reason: str = ""
    is_guaranteed: bool = True
    made_at: float = 0.0
    rows: int = 0
    audit_ratio: float = 0.0
    audit: Audit = field(default_factory=Audit)
    is_repeated: bool = False
    spent_usd: float = 0.0
    distilled: dict[int, DistilledCounts] = field(default_factory=dict)

    @property
    def asked(self) -> tuple[int, ...]:
        """Stages that are asked."""
        return () if self.calibration is None else self.calibration.asked


def read_calibration(spec: JobSpec) -> StoredCalibration | None:
    """Returns the calibration of an earlier run, or try, of the same prompt and models; `None` without one.

    Raises:
        JobFailedError: A newer version of the package wrote it.
    """
    uri = calibration_uri(spec)
    if not storage.exists(uri):
        return None
    content = storage.read(uri)
    refuse_newer(uri, content)
    try:
        return StoredCalibration.model_validate_json(content)
    except ValidationError as error:
        _log.warning("The calibration %r cannot be read, and the cascade is calibrated again: %s", uri, error)
        return None


def calibration_uri(spec: JobSpec) -> str:
    """Returns the address of the calibration of all runs with the prompt and the models of a job."""
    decisive = spec.model_dump(
        mode="json",
        exclude_defaults=True,
        include={"prompt": True, "model": True, "generation": True, "cascade": True, "safety": {"privacy"}},
        exclude={
            "model": {"labels"},
            "cascade": {"audit_ratio": True, "stages": {"__all__": {"limits", "inference"}}},
        },
    )
    text = json.dumps([spec.owner or spec.name, decisive], sort_keys=True)
    return f"{spec.paths.shared_uri}cascades/{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def end_cascade(spec: JobSpec, audit: Audit | None, drifted: tuple[str, ...] = ()) -> None:
    """Notes that a run has published, and what its audit has found; a failure is only logged.

    Args:
        spec: The job.
        audit: The audit of this run; `None` for one that has calibrated.
        drifted: Names of distilled stages whose rows have drifted.
    """
    try:
        if (stored := read_calibration(spec)) is None:
            return
        audits = {**stored.audits, spec.name: audit} if audit is not None else stored.audits
        changed = stored.model_copy(update={"is_published": True, "audits": audits, "drifted": drifted})
        storage.replace(calibration_uri(spec), changed.model_dump_json(indent=1).encode())
        cascade = cast("Cascade", spec.cascade)
        if contradicts(changed.audit, cascade.target_agreement):
            _log.warning(
                "Cascade: the audits contradict `target_agreement` %g (%s of %s audited rows disagree). The next "
                "run calibrates again.",
                cascade.target_agreement,
                f"{changed.audit.disagreements:,}",
                f"{changed.audit.audited:,}",
            )
    except Exception as error:  # noqa: BLE001 - the answers are published
        _log.warning("The audit of the cascade could not be noted: %s", error)


def run_of(spec: JobSpec, cascade: Cascade, stored: StoredCalibration) -> RunCascade:
    """Returns the cascade of a run that uses a stored calibration."""
    calibration = stored.calibration
    is_own = stored.is_of_try(spec)
    kept = round(stored.rows * sum(calibration.kept))
    audited = 0 if is_own else count_audit_rows(kept, cascade.audit_ratio)
    return RunCascade(
        calibration,
        calibration.reason,
        is_own,
        stored.made_at,
        stored.rows,
        min(1.0, audited / kept) if audited and kept else 0.0,
        stored.audit,
        spec.name in stored.audits or (stored.job == spec.name and stored.is_published),
        distilled=stored.distilled,
    )
