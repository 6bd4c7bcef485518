"""Operators for models of the Model Registry of Vertex AI: resolve, promote and roll back a version."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import BaseOperator

from airflow_provider_llmbeam.exceptions import JobError, JobSpecError, LLMBeamError, error_class
from airflow_provider_llmbeam.operators.arguments import check_arguments
from airflow_provider_llmbeam.operators.errors import errors_of_airflow
from airflow_provider_llmbeam.operators.literal import is_pending
from airflow_provider_llmbeam.spec.fields.registered_model import RegisteredModel
from airflow_provider_llmbeam.spec.protocol.manifest import ERROR_KEY

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_provider_llmbeam.endpoints.model_aliases import AliasState, RegistryHook
    from airflow_provider_llmbeam.endpoints.traffic import TrafficSplit
    from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook

_ENDPOINT_NAME = re.compile(r"projects/[^/]+/locations/[^/]+/endpoints/[^/]+")


class _RegisteredModelOperator(BaseOperator):
    """Base of the operators of one registered model."""

    template_fields: Sequence[str] = ("model", "gcp_conn_id", "impersonation_chain")
    ui_color = "#e6f4ea"

    def __init__(
        self,
        *,
        model: str | XComArg,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        check_arguments(type(self), kwargs)
        super().__init__(**kwargs)
        self.model = model
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        if not is_pending(model):
            self._read_version()

    def _read_version(self) -> RegisteredModel:
        if (model := RegisteredModel.read(self.model)) is None:
            raise JobSpecError(
                f"Task {self.task_id!r}: `model`: must be a registered model, "
                f"'projects/…/locations/…/models/…@champion'; got {self.model!r}."
            )
        return model

    def _hook(self, model: RegisteredModel) -> VertexAIHook:
        from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook

        return VertexAIHook(model.location, model.project, self.gcp_conn_id, self.impersonation_chain)


class ResolveModelOperator(_RegisteredModelOperator):
    """Returns the version of a registered model that an alias names now.

    A separate task, as its result is kept while others are retried: an alias that moves during a run does not
    change the model of the run. `inference_endpoint` adds one for an endpoint whose `model` has an alias.

    Args:
        model: Registered model, `projects/…/locations/…/models/…@champion`; without a version the alias `default`.
        gcp_conn_id: Airflow connection of type Google Cloud; without a default connection, the credentials of the
            worker.
        impersonation_chain: Service account to impersonate, or a chain of them.

    Templated:
        `model`, `gcp_conn_id`, `impersonation_chain`.

    XCom:
        The model with the number of its version, `projects/…/locations/…/models/…@3`.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: There is no such model, or no such version.
        CloudError: The Model Registry did not answer.
    """

    def execute(self, context: Context) -> str:
        """Resolves the version."""
        from airflow_provider_llmbeam.endpoints.model_aliases import resolve

        with errors_of_airflow():
            model = self._read_version()
            found = resolve(self._hook(model), model)
            self.log.info("%s is version %s.", model, found.version)
            return str(found)


class _MoveOperator(_RegisteredModelOperator):
    """Base of the operators that move an alias, or the requests of an endpoint, from or to a version."""

    template_fields: Sequence[str] = ("model", "alias", "endpoint", "gcp_conn_id", "impersonation_chain")

    def __init__(
        self,
        *,
        model: str | XComArg,
        alias: str | None = None,
        endpoint: str | Mapping[str, Any] | XComArg | None = None,
        gone_within_seconds: float = 1_200.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(model=model, **kwargs)
        self.alias = alias
        self.endpoint = endpoint
        self.gone_within_seconds = gone_within_seconds
        if not is_pending(alias):
            self._check_alias()

    def _check_alias(self) -> None:
        from airflow_provider_llmbeam.endpoints.model_aliases import check_alias

        if self.alias is None and self.endpoint is None:
            raise JobSpecError(
                f"Task {self.task_id!r}: needs an `alias`, e.g. 'champion', or an `endpoint`, e.g. `model` of an "
                "`inference_endpoint`; got neither. Nothing was moved."
            )
        if self.alias is not None:
            check_alias(self.alias)

    def _endpoint_name(self) -> str | None:
        """Returns the resource name of the endpoint, which may be that of a model spec."""
        name = self.endpoint.get("endpoint") if isinstance(self.endpoint, Mapping) else self.endpoint
        if name is None and self.endpoint is None:
            return None
        if not isinstance(name, str) or not _ENDPOINT_NAME.fullmatch(name):
            raise JobSpecError(
                f"Task {self.task_id!r}: `endpoint`: must be 'projects/…/locations/…/endpoints/…', or the `model` "
                f"of an `inference_endpoint` on Vertex AI; got {self.endpoint!r}. Nothing was moved."
            )
        return name

    def _read_version(self) -> RegisteredModel:
        model = super()._read_version()
        if not model.is_fixed:
            raise JobSpecError(
                f"Task {self.task_id!r}: `model`: must have the number of a version, not the alias "
                f"{model.version!r}, which can move before this task: use `version` of an `inference_endpoint`, "
                "or a `ResolveModelOperator`. No alias was moved."
            )
        return model

    def _move(
        self,
        move: Callable[[RegistryHook, RegisteredModel, str], AliasState],
        decide: Callable[[Any, RegisteredModel], TrafficSplit | None],
    ) -> dict[str, Any]:
        from airflow_provider_llmbeam.endpoints.traffic import shift
        from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook

        with errors_of_airflow():
            self._check_alias()
            model, name = self._read_version(), self._endpoint_name()
            found: dict[str, Any] = {"model": model.model, "version": model.version}
            if name is not None:
                _, project, _, location, *_ = name.split("/")
                hook = VertexAIHook(location, project, self.gcp_conn_id, self.impersonation_chain)
                found |= shift(hook, name, lambda one: decide(one, model), within_seconds=self.gone_within_seconds)
                self.log.info("The requests of %s, in percent: %s.", name, found["percents"])
            if self.alias is not None:
                state = move(self._hook(model), model, self.alias)
                self.log.info("The alias %r is at version %s of %s.", state.alias, state.version, state.model)
                found |= state.plain()
            return found


class PromoteModelOperator(_MoveOperator):
    """Moves an alias, e.g. `champion`, or the requests of an endpoint to a version of a registered model.

    Place it after the task that evaluated the version. The version that had the alias before gets the alias
    `ALIAS-previous`, for a rollback. In an endpoint, where the version is a canary, the requests move at once; at
    100 percent the other version is undeployed. A retry, or another run for the same version, changes nothing.

    Args:
        model: Version with its number, `projects/…/locations/…/models/…@3`: `version` of an `inference_endpoint`,
            or the XCom of a `ResolveModelOperator`. An alias is refused: it could have moved since the evaluation.
        alias: Alias to move: 2 to 119 letters, digits and -, beginning with a-z. `None` moves none.
        endpoint: Endpoint on Vertex AI that has the version deployed, `projects/…/locations/…/endpoints/…`, or the
            `model` of an `inference_endpoint` with a `canary`. `None` changes none.
        percent: Percentage of the requests of `endpoint` that the version gets. Below 100 the other version keeps
            the rest, and no alias can be moved.
        gone_within_seconds: Time limit for the other version to be undeployed, in seconds.
        gcp_conn_id: Airflow connection of type Google Cloud; without a default connection, the credentials of the
            worker.
        impersonation_chain: Service account to impersonate, or a chain of them.

    Templated:
        `model`, `alias`, `endpoint`, `gcp_conn_id`, `impersonation_chain`.

    XCom:
        `model`, `alias`, `version` and `previous_version`, both as numbers, and whether this task `moved` it; of
        an endpoint its name, and the `percents` of its requests by version.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: There is no such version; nothing was moved.
        StillBillingError: The other version could not be undeployed in time.
        CloudError: Vertex AI did not answer; a retry goes on.
    """

    def __init__(
        self,
        *,
        model: str | XComArg,
        alias: str | None = None,
        endpoint: str | Mapping[str, Any] | XComArg | None = None,
        percent: int = 100,
        **kwargs: Any,
    ) -> None:
        super().__init__(model=model, alias=alias, endpoint=endpoint, **kwargs)
        self.percent = percent
        if not 1 <= percent <= 100 or (percent < 100 and (alias is not None or endpoint is None)):
            raise JobSpecError(
                f"Task {self.task_id!r}: `percent`: must be 1 to 100, and below 100 with `endpoint` and without "
                f"`alias`; got {percent}."
            )

    def execute(self, context: Context) -> dict[str, Any]:
        """Moves the alias and the requests."""
        from airflow_provider_llmbeam.endpoints.model_aliases import promote
        from airflow_provider_llmbeam.endpoints.traffic import split_of_promotion

        return self._move(promote, partial(split_of_promotion, percent=self.percent))


class RollBackModelOperator(_MoveOperator):
    """Moves an alias from a version back to the one that had it before, or ends a canary of an endpoint.

    If another version has the alias by now, it stays there. In an endpoint, the other version gets all requests at
    once, and this one is undeployed. A retry changes nothing.

    Args:
        model: Version that is to lose the alias, as of `PromoteModelOperator`.
        alias: Alias to move, as `PromoteModelOperator` moved it. `None` moves none.
        endpoint: Endpoint that has the version deployed, as of `PromoteModelOperator`.
        errors: Names of errors, e.g. `("DriftError",)`: the alias is moved only if a `RunInferenceOperator`
            directly before this task failed with one of them or of their subclasses, see
            docs/reference/exceptions.md; otherwise this task is skipped. It needs `trigger_rule="one_failed"`.
            `None` always moves back.
        gone_within_seconds: Time limit for the version to be undeployed, in seconds.
        gcp_conn_id: Airflow connection of type Google Cloud; without a default connection, the credentials of the
            worker.
        impersonation_chain: Service account to impersonate, or a chain of them.

    Templated:
        `model`, `alias`, `endpoint`, `gcp_conn_id`, `impersonation_chain`.

    XCom:
        As of `PromoteModelOperator`.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: No other version had the alias before, or is deployed; nothing was moved.
        StillBillingError: The version could not be undeployed in time.
        AirflowSkipException: No task directly before this one failed with one of `errors`.
        CloudError: The Model Registry did not answer; a retry goes on.
    """

    ui_color = "#fce8e6"

    def __init__(
        self,
        *,
        model: str | XComArg,
        alias: str | None = None,
        endpoint: str | Mapping[str, Any] | XComArg | None = None,
        errors: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model=model, alias=alias, endpoint=endpoint, **kwargs)
        self.errors = errors
        for name in errors or ():
            if error_class(name, LLMBeamError).__name__ != name:
                raise JobSpecError(
                    f"Task {self.task_id!r}: `errors`: must name errors of docs/reference/exceptions.md, e.g. "
                    f"'DriftError'; got {name!r}. No alias was moved."
                )

    def execute(self, context: Context) -> dict[str, Any]:
        """Moves the alias and the requests back."""
        from airflow_provider_llmbeam.endpoints.model_aliases import roll_back
        from airflow_provider_llmbeam.endpoints.traffic import split_of_rollback

        if self.errors is not None:
            found = context["ti"].xcom_pull(task_ids=sorted(self.upstream_task_ids), key=ERROR_KEY) or ()
            wanted = tuple(error_class(name, LLMBeamError) for name in self.errors)
            if not any(issubclass(error_class(str(name), JobError), wanted) for name in found if name):
                raise AirflowSkipException(
                    f"No task before this one failed with {' or '.join(self.errors)}: nothing was moved."
                )
        return self._move(roll_back, split_of_rollback)
