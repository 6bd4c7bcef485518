"""`SweepBatchInferenceOperator`: removes what batch inference leaves at a provider."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.deployment import deployment_names, require_deployment
from airflow_provider_llmbeam.operators.arguments import check_arguments
from airflow_provider_llmbeam.operators.literal import is_pending, plain
from airflow_provider_llmbeam.operators.sweep import _SweepOperator
from airflow_provider_llmbeam.operators.written import WrittenInDag
from airflow_provider_llmbeam.spec.job.inference_rules import check_batch_model
from airflow_provider_llmbeam.spec.model import Model, model_data, model_problems, parse_model

if TYPE_CHECKING:
    from airflow.sdk import XComArg

    from airflow_provider_llmbeam.endpoints.sweep import SweepManifest
    from airflow_provider_llmbeam.polling.poller import TaskLog

#: Age above which a batch-inference job is considered forgotten, in seconds: twice the default of
#: `inference.max_batch_wait_seconds`.
OLDER_THAN_SECONDS = 2 * 86_400.0


class SweepBatchInferenceOperator(WrittenInDag, _SweepOperator):
    """Cancels forgotten batch-inference jobs, and deletes ended ones and uploaded files that belong to no job.

    Intended for a separate Dag: the jobs of a task that is marked as failed, or whose Dag run is deleted, go on
    and bill what they answer. Jobs and files are those of the provider and the account of `model`; on Vertex AI,
    those of its project and location. They are selected by their display names; those of another Airflow are swept
    only if `deployments` names it.

    A job that has not ended is cancelled, and a later run deletes it. OpenAI keeps the entry of a batch; its files
    are deleted. On Vertex AI, request and result files are on your bucket, and left alone. Stored prompt heads
    (`inference.prefix_cache`) expire by themselves within ten minutes.

    Args:
        model: Model of the provider, see `spec.GeminiModel` and `spec.OpenAIModel`, or the name of a Gemini model.
            Its name has no effect: the jobs of all models of an account are in one list.
        llmbeam_conn_id: Connection with API key, base URL, project and location.
        gcp_conn_id: Connection with the credentials for Vertex AI.
        impersonation_chain: Service account to impersonate, or a chain of them.
        deployments: Names of the Airflow deployments whose jobs are swept, see `[llmbeam] deployment`; by default
            this one.
        dry_run: Whether to only list what is due.
        older_than_seconds: Age above which a job or a file is due, in seconds: of a running job since its
            creation, of an ended one since its end. It has to be longer than the longest
            `inference.max_batch_wait_seconds` of the jobs: a run that still waits for a job that is cancelled here
            sends its rows online, at the full price.

    Templated:
        `model`, `deployments`, `llmbeam_conn_id`, `gcp_conn_id`, `impersonation_chain`.

    XCom:
        The names of the jobs and files that were cancelled, deleted and kept, and sentences about those that
        failed.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: A rendered argument is invalid, or there is no key.
        StillBillingError: Something could not be listed, cancelled or deleted; raised after all else was handled.
    """

    template_fields: Sequence[str] = (
        "model",
        "deployments",
        "llmbeam_conn_id",
        "gcp_conn_id",
        "impersonation_chain",
    )
    template_fields_renderers = dict.fromkeys(template_fields[:1], "json")

    def __init__(
        self,
        *,
        model: Model | Mapping[str, Any] | str | XComArg,
        llmbeam_conn_id: str = "llmbeam_default",
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        deployments: Sequence[str] | XComArg | None = None,
        dry_run: bool = False,
        older_than_seconds: float = OLDER_THAN_SECONDS,
        **kwargs: Any,
    ) -> None:
        check_arguments(type(self), kwargs)
        super().__init__(**kwargs)
        self.model = model_data(plain(model))
        self.llmbeam_conn_id = llmbeam_conn_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.deployments = deployments
        self.lists_only = dry_run
        self.older_than_seconds = older_than_seconds
        if not older_than_seconds >= 0:
            raise JobSpecError(
                f"Task {self.task_id!r}: `older_than_seconds` must be 0 or more; got {older_than_seconds!r}."
            )
        problems = [*model_problems(self.model)]
        if literal := [problem for problem in problems if not is_pending(problem.got)]:
            raise JobSpecError(f"Task {self.task_id!r}: {' '.join(map(str, literal))}")
        try:
            if not problems:
                check_batch_model(parse_model(self.model))
            if not is_pending(deployments):
                deployment_names(deployments)
        except JobSpecError as error:
            raise JobSpecError(f"Task {self.task_id!r}: {error}") from None

    def sweep(self, log: TaskLog) -> SweepManifest:
        """Sweeps the jobs and files."""
        # Imported here: parsing a Dag file loads no HTTP client.
        from airflow_provider_llmbeam.endpoints.sweep import BatchInferenceJobs, sweep
        from airflow_provider_llmbeam.hooks.llmbeam import open_model
        from airflow_provider_llmbeam.providers.batch import open_provider
        from airflow_provider_llmbeam.providers.rest import session_with

        names = deployment_names(self.deployments) or (require_deployment(),)
        self._check_model(self.model)
        model, headers = open_model(
            self.model,
            llmbeam_conn_id=self.llmbeam_conn_id,
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=self.impersonation_chain,
            check=check_batch_model,
        )
        headers()  # raises an error without a key
        provider = open_provider(model, output_uri="", session=session_with(headers, model.api))
        if not provider.has_display_names:
            raise JobSpecError(
                f"`model`: batches of {model.api.service} have no name that says whose they are; got "
                f"{model.name!r}. They end within a day; its console lists them."
            )
        made_before = time.time() - self.older_than_seconds
        things = [
            BatchInferenceJobs(provider=provider, deployment=name, made_before=made_before)
            for name in sorted({*names})
        ]
        return sweep(things, deployments=names, dry_run=self.lists_only, log=log)
