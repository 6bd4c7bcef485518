"""Submits a pipeline to Dataflow, once."""

from __future__ import annotations

import logging
import re

import apache_beam as beam
from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult
from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError
from google.api_core.exceptions import Forbidden, GoogleAPICallError, RetryError, ServerError
from google.auth.exceptions import GoogleAuthError

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger("llmbeam")


def submit_once(pipeline: beam.Pipeline, spec: JobSpec) -> DataflowPipelineResult:
    """Submits a pipeline, or returns the running job of the same name, which has the same spec.

    The exceptions have no cause, as the command line reports the first one of a chain.

    Raises:
        JobSpecError: Dataflow rejected the job.
        JobFailedError: It is not known whether Dataflow accepted the job.
    """
    try:
        return pipeline.run()
    except DataflowJobAlreadyExistsError as error:
        # Beam 2.77 has the id only in the message.
        found = re.search(r"with id: ([\w-]+)", str(error))
        if found is None:
            raise JobFailedError(
                f"Job {spec.name!r} runs on Dataflow already, with an unknown id: {error}"
            ) from None
        _log.info("Dataflow runs this job already: %s", found[1])
        client = pipeline.runner.dataflow_client
        return DataflowPipelineResult(client.get_job(found[1]), pipeline.runner, pipeline.options)
    except GoogleAuthError as error:
        raise JobSpecError(
            f"Job {spec.name!r} was not submitted: the Google credentials are missing or invalid: {error}"
        ) from None
    except (ServerError, RetryError) as error:
        raise JobFailedError(
            f"Job {spec.name!r}: Dataflow did not answer the submission: {error} The job may be running; a retry "
            "finds it by its name."
        ) from None
    except Forbidden as error:
        raise JobSpecError(
            f"Job {spec.name!r} was not submitted (HTTP 403): {sentence(error)} The account that submits needs "
            "the role `roles/dataflow.developer`, or one that holds it, and `roles/iam.serviceAccountUser` on the "
            "account of the workers."
        ) from None
    except (GoogleAPICallError, ValueError) as error:
        raise JobSpecError(f"Job {spec.name!r} was not submitted: {sentence(error)}") from None
    except OSError as error:
        raise JobFailedError(
            f"Job {spec.name!r} was not submitted, since its files could not be uploaded to "
            f"{spec.paths.temp_uri!r}: {sentence(error)} Nothing was sent or billed; a retry submits it again."
        ) from None


def sentence(error: Exception) -> str:
    """Returns the message of an error as one line that ends with a full stop."""
    message = " ".join(str(getattr(error, "message", "") or error or type(error).__name__).split())
    return message if message.endswith((".", "!", "?")) else f"{message}."
