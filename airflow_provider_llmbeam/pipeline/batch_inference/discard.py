"""Ends the batch inference of an earlier try whose prompts or model are not those of the job any more."""

from __future__ import annotations

import logging
import re

from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import BatchManifest
from airflow_provider_llmbeam.providers.batch import BatchJob, BatchProvider, delete_uploads, open_provider
from airflow_provider_llmbeam.spec.identity import display_name_prefix
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.job.inference_rules import check_batch_model
from airflow_provider_llmbeam.spec.model import Model, parse_model

_log = logging.getLogger("llmbeam")

#: Addresses of the providers themselves.
_OF_PROVIDER = re.compile(r"https://([a-z0-9-]+\.)+(googleapis|openai)\.com/.*")


def discard(spec: JobSpec, manifest: BatchManifest) -> None:
    """Cancels the jobs of an earlier try, at the provider of its model, and deletes its files there and here.

    What cannot be cancelled is named in a warning: it does not keep the job back.

    Args:
        spec: The job.
        manifest: State of the earlier try, with other prompts or another model.
    """
    if not manifest.is_published:
        _log.info("The job has changed since its batch inference began, whose answers are not used.")
        _cancel_jobs(spec, manifest)
    storage.delete(storage.match(f"{spec.paths.batch_uri}**"))


def _cancel_jobs(spec: JobSpec, manifest: BatchManifest) -> None:
    try:
        provider = open_provider(_model_of(spec, manifest), output_uri="")
        listed = provider.find(display_name_prefix(spec))
    except LLMBeamError as error:
        for name in _jobs_of(manifest):
            _warn(name, manifest, error)
        return
    for job in listed:
        if job.display_name in manifest.files and not job.has_ended:
            _cancel(provider, job, manifest)
    names = {job.name for job in listed}
    known = manifest.jobs.values()
    for job in [job for job in known if job.name not in names and job.display_name not in manifest.harvested]:
        try:
            found = provider.get(job.name)  # a list may lag behind
        except LLMBeamError as error:
            _warn(f"{job.name} ({job.display_name})", manifest, error)
        else:
            if not found.has_ended:
                _cancel(provider, job, manifest)
    try:
        delete_uploads(provider, display_name_prefix(spec), manifest.files)
    except LLMBeamError as error:
        _log.warning("Request files of the earlier try were not deleted: %s", error)


def _cancel(provider: BatchProvider, job: BatchJob, manifest: BatchManifest) -> None:
    try:
        provider.cancel(job.name)
    except LLMBeamError as error:
        _warn(f"{job.name} ({job.display_name})", manifest, error)
    else:
        _log.info("Batch-inference job %s (%s) was cancelled.", job.name, job.display_name)


def _model_of(spec: JobSpec, manifest: BatchManifest) -> Model:
    """Returns the model whose credentials are sent to its provider.

    Raises:
        JobSpecError: It is none with batch inference, or has an address to which this job sends no credentials.
    """
    if manifest.model is None:  # an earlier version wrote it; its provider may be the same
        return spec.model
    model = parse_model(manifest.model)
    check_batch_model(model)
    address, own = f"{model.address}/", getattr(spec.model, "base_url", None)
    # Others may write to the state of a job: its credentials go to the providers, and where its spec sends them.
    if not _OF_PROVIDER.fullmatch(address) and not (own and address.startswith(f"{own}/")):
        raise JobSpecError(f"{address!r} is not the address of this job, and gets none of its credentials.")
    return model


def _jobs_of(manifest: BatchManifest) -> list[str]:
    """Returns the jobs that may run, as far as their names are known."""
    left = [name for name in manifest.files if name not in manifest.harvested]
    submitted = [name for name in left if name in manifest.jobs or manifest.submits.get(name)]
    # A process may have ended between the submission and its record.
    return [
        f"{manifest.jobs[name].name} ({name})" if name in manifest.jobs else name for name in submitted or left
    ]


def _warn(job: str, manifest: BatchManifest, error: LLMBeamError) -> None:
    place = "whose model the state of the earlier try does not name"
    if (model := manifest.model) is not None:
        server = model.get("base_url") or model.get("project")
        place = f"of model {model.get('name')!r} of type {model.get('type')!r}" + (
            f" at {server}" if server else ""
        )
    _log.warning(
        "Batch-inference job %s of an earlier try, %s, was not cancelled, and may still run and bill: %s "
        "Cancel it in the console of its provider, or leave it to `SweepBatchInferenceOperator` with that model.",
        job,
        place,
        str(error).removesuffix(" Nothing was sent or billed."),
    )
