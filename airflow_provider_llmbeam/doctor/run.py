"""`llmbeam doctor`: a job of a file or of a task, with the connections of this Airflow."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from airflow_provider_llmbeam.doctor.examine import Patient, examine
from airflow_provider_llmbeam.doctor.finding import Diagnosis, Finding
from airflow_provider_llmbeam.doctor.send import send
from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError
from airflow_provider_llmbeam.hooks.google.authentication import google_credentials
from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook
from airflow_provider_llmbeam.operators.dag_task import Question, airflow_of_tasks, rendered_task
from airflow_provider_llmbeam.spec import JobSpec


def diagnose(
    job: str | None,
    *,
    when: str | None = None,
    map_index: int | None = None,
    gcp_conn_id: str = "google_cloud_default",
    sends: bool = False,
) -> Diagnosis:
    """Examines a job, or without one this machine and the account.

    Args:
        job: Path of the JSON of a spec, or `FILE::TASK`.
        when: Day, time or id of the Dag run of a task.
        map_index: Index of the instance of a mapped task.
        gcp_conn_id: Connection of a job that is no task.
        sends: Whether trial jobs are run, which are billed.
    """
    with ExitStack() as until_end:
        try:
            patient = until_end.enter_context(_patient(job, when, map_index, gcp_conn_id))
        except LLMBeamError as error:
            remedy = (
                "airflow connections add CONN_ID --conn-type TYPE …"
                if "there is no connection" in str(error)
                else f"llmbeam check {job}"
            )
            return Diagnosis([Finding(subject=f"job {job}", verdict="fault", sentence=str(error), remedy=remedy)])
        findings = list(examine(patient))
        if sends and patient.spec is not None and not any(each.verdict == "fault" for each in findings):
            with google_credentials(patient.spec, patient.gcp_conn_id):
                findings += send(patient.spec, uuid.uuid4().hex[:8], patient.secrets)
        return Diagnosis(findings)


@contextmanager
def _patient(job: str | None, when: str | None, map_index: int | None, gcp_conn_id: str) -> Iterator[Patient]:
    """Provides what is examined; connections are found in the body.

    Raises:
        LLMBeamError: The job or the task is not valid, or a connection is missing.
    """
    if job is not None and ("::" in job or job.endswith(".py")):
        with rendered_task(Question(address=job, step="check", when=when, map_index=map_index)) as found:
            task = found.task
            yield Patient(
                spec=found.spec,
                secrets=found.secrets,
                gcp_conn_id=task.gcp_conn_id,
                impersonation_chain=task.impersonation_chain,
            )
        return
    with airflow_of_tasks():
        if job is None:
            LLMBeamHook().get_conn()
            yield Patient(gcp_conn_id=gcp_conn_id)
            return
        try:
            content = Path(job).read_bytes()
        except OSError as error:
            raise JobSpecError(f"{job!r} cannot be read: {error.strerror}.") from error
        yield Patient(spec=JobSpec.from_json(content), gcp_conn_id=gcp_conn_id)
