"""The `llmbeam` connection: address of a model server, and its API key."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, mask_secret
from airflow.sdk import BaseHook

from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError
from airflow_provider_llmbeam.hooks.deployment import own_deployment
from airflow_provider_llmbeam.hooks.google.authentication import ModelAuthentication
from airflow_provider_llmbeam.redaction import redact, secrets_of, url_fault
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.model import (
    Model,
    connection_fields,
    header_variable,
    model_data,
    model_problems,
    parse_model,
)
from airflow_provider_llmbeam.spec.model.server import with_base_url
from airflow_provider_llmbeam.spec.usage_tier import thresholds_of


class LLMBeamHook(BaseHook):
    """Reads an `llmbeam` connection.

    The API key is passed to the job in its environment, never in the spec. If the default connection does not
    exist, the job uses the variables of the worker's own environment.

    Args:
        llmbeam_conn_id: Name of the connection.
    """

    conn_name_attr = "llmbeam_conn_id"
    default_conn_name = "llmbeam_default"
    conn_type = "llmbeam"
    hook_name = "LLM Beam"

    def __init__(self, llmbeam_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.llmbeam_conn_id = llmbeam_conn_id

    def get_conn(self) -> Any:
        """Returns the connection; `None` if the default connection does not exist.

        Raises:
            JobSpecError: Another connection does not exist, the host holds what belongs in the password, the
                address of the server is not in the host alone, or the extra fields are no JSON object.
        """
        try:
            connection = self.get_connection(self.llmbeam_conn_id)
        except AirflowNotFoundException as error:
            if self.llmbeam_conn_id != self.default_conn_name:
                raise JobSpecError(
                    f"`llmbeam_conn_id`: there is no connection {self.llmbeam_conn_id!r}. "
                    "Add it under Admin, Connections, with the type LLM Beam."
                ) from error
            self.log.debug("No connection %r: using the worker's environment.", self.llmbeam_conn_id)
            return None
        if fault := url_fault(connection.host or ""):
            raise JobSpecError(
                f"`llmbeam_conn_id`: the host of connection {self.llmbeam_conn_id!r} holds {fault}. Expected only "
                "the address of the server, as it is written to logs and reports: a key belongs in the password "
                "of the connection."
            )
        # Airflow splits `llmbeam://https://:key@gpu.internal:8000/v1` into these; the form has the host alone.
        others = {"port": connection.port, "schema": connection.schema}
        if given := [f"a {name}" for name, value in others.items() if value]:
            raise JobSpecError(
                f"`llmbeam_conn_id`: connection {self.llmbeam_conn_id!r} has {' and '.join(given)}, which would "
                "be left out, so that the key would be sent to another address. Expected the whole address in the "
                "host, e.g. 'http://gpu.internal:8000/v1'."
            )
        if connection.host and not connection.host.startswith(("http://", "https://")):
            raise JobSpecError(
                f"`llmbeam_conn_id`: the host of connection {self.llmbeam_conn_id!r} does not start with http:// "
                "or https://. Expected the whole address of the server, e.g. 'https://api.openai.com/v1'."
            )
        self._extra(connection)
        return connection

    def _extra(self, connection: Any) -> dict[str, Any]:
        """Returns the extra fields; without its project, a model on Vertex AI would be sent to another service."""
        try:
            extra = json.loads(connection.extra or "{}")
        except ValueError:
            extra = None
        if not isinstance(extra, dict):  # not shown: it may hold a secret
            raise JobSpecError(
                f"`llmbeam_conn_id`: the extra fields of connection {self.llmbeam_conn_id!r} are no JSON object, "
                'such as {"project": "acme-prod", "location": "europe-west1"}.'
            )
        return extra

    def test_connection(self) -> tuple[bool, str]:
        """Asks the server for its models, which is free, and reports whether it accepts the key.

        Returns:
            Whether the connection can be used, and a message for the user.
        """
        from airflow_provider_llmbeam.hooks.model_list import describe_access, model_of_connection

        fields, secrets, key = dict[str, Any](), dict[str, str](), ""
        try:
            connection, deployment = self.get_conn(), own_deployment()
            if connection is not None:
                key = connection.password or ""
                fields, values = self._fields(connection)
                secrets = _with_values({}, values)[1]
            model = model_of_connection(key, fields)
            secrets |= dict.fromkeys(model.api.key_variables, key) if key else {}
            found = describe_access(model, secrets)
        except LLMBeamError as error:
            return False, redact(str(error), [key, *secrets_of(secrets, secrets)])
        named = repr(deployment) if deployment else "not set, which Dataflow jobs and endpoints need"
        server = fields.get("base_url") or model.api.service
        return True, f"{server}: {found}. Deployment (`[llmbeam] deployment`): {named}."

    def complete(self, data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Completes the `model` of a job, and its `limits` with the usage tier of the connection.

        Args:
            data: A job, or a question about one, as plain data.

        Returns:
            The completed data, and the environment variables with the API key; see `complete_model`.

        Raises:
            JobSpecError: See `get_conn`.
        """
        connection = self.get_conn()
        model, secrets = self._complete_model({**data["model"]}, connection)
        completed, limits = {**data, "model": model}, data.get("limits") or {}
        tier = self._extra(connection).get("usage_tier") if connection else None
        inference = data.get("inference")
        asked = inference.get("service_tier") if isinstance(inference, Mapping) else None
        has_thresholds = not model_problems(model) and bool(thresholds_of(parse_model(model)))
        if tier and has_thresholds and asked in (None, "standard") and isinstance(limits, Mapping):
            completed["limits"] = {"usage_tier": tier, **limits}
        return completed, secrets

    def complete_model(self, model: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Adds the fields that the model does not set and the connection provides.

        The key of the default connection may be that of Gemini: another server gets it, and what the connection
        has for a gateway, only if its address is the host of that connection.

        Args:
            model: A model spec as plain data.

        Returns:
            The model, and the environment variables with its API key and the values of its headers, which Airflow
            masks in logs.

        Raises:
            JobSpecError: See `get_conn`.
        """
        return self._complete_model(model, self.get_conn())

    def _complete_model(self, model: dict[str, Any], connection: Any) -> tuple[dict[str, Any], dict[str, str]]:
        if connection is None:
            return model, {}
        provided, values = self._fields(connection)
        fields = connection_fields(model)
        own = {name: value for name, value in model.items() if value}
        # What is no model is refused by the caller.
        key_variable = next(iter(() if model_problems(own) else parse_model(own).api.key_variables), None)
        secrets = {key_variable: connection.password} if key_variable and connection.password else {}
        values = values if "headers" in fields else {}
        provided["headers"], of_headers = _with_values(from_text(own.get("headers", {})), values)
        if self.llmbeam_conn_id == self.default_conn_name and _is_at_another_address(own, provided):
            if secrets or of_headers:
                self.log.info(
                    "The key and the headers of connection %r are left out, as its host is not the address of "
                    "model %r, or `model.auth` has another `token_url`: `%s` of the environment is used. Name a "
                    "connection in `llmbeam_conn_id` to send its key.",
                    self.llmbeam_conn_id,
                    model.get("name"),
                    key_variable,
                )
            fields, secrets, of_headers = tuple({*fields} & {"base_url", "project", "location"}), {}, {}
        filled = {
            name: provided[name]
            for name in fields
            if provided.get(name) and (name not in own or name == "headers")
        }
        secrets |= of_headers
        for secret in secrets_of(secrets, secrets):
            mask_secret(secret)
        return {**model, **filled}, secrets

    def _fields(self, connection: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """Returns the fields of a model that a connection has, and the values of headers by their names."""
        extra = {name: from_text(value) for name, value in self._extra(connection).items()}
        auth, values = extra.get("auth"), extra.get("headers") or {}
        if isinstance(auth, dict) and auth.get("type") == "oauth" and connection.login:
            auth = {"client_id": connection.login, **auth}
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise JobSpecError(  # not shown: it may hold a secret
                f"`llmbeam_conn_id`: `headers` in the extra of connection {self.llmbeam_conn_id!r} is no JSON "
                'object with texts, such as {"x-portkey-config": "VALUE"}.'
            )
        found = {name: extra.get(name) for name in ("project", "location", "query")}
        return {"base_url": connection.host, **found, "auth": auth, "headers": _with_values({}, values)[0]}, values


def _with_values(named: Any, values: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
    """Returns headers of a model with those of a connection, and the variables with their values.

    Args:
        named: Variables by header; a header that the connection has, too, keeps its variable.
        values: Values by header.
    """
    if not isinstance(named, Mapping):
        return named, {}  # refused by the caller
    own = {str(name).lower(): variable for name, variable in named.items()}
    variables = {name: own.get(name.lower(), header_variable(name)) for name in values}
    added = {name: variable for name, variable in variables.items() if name.lower() not in own}
    return {**named, **added}, {variables[name]: value for name, value in values.items()}


def _is_at_another_address(model: Mapping[str, Any], provided: Mapping[str, Any]) -> bool:
    """Returns whether a model, as plain data, would send what a connection has to another server than its own.

    Without a host, a connection is one for Gemini. The secret of an OAuth client goes to the token endpoint.
    """
    host: str | None = provided["base_url"]
    own, given = (from_text(one.get("auth")) for one in (model, provided))
    issuer = own.get("token_url") if isinstance(own, Mapping) else None
    if issuer and issuer != (given.get("token_url") if isinstance(given, Mapping) else None):
        return True
    if not host:
        return bool(model.get("type", "gemini") != "gemini")
    return str(model.get("base_url", host)).rstrip("/") != host.rstrip("/")


def open_model(
    model: Mapping[str, Any] | str,
    *,
    llmbeam_conn_id: str = LLMBeamHook.default_conn_name,
    gcp_conn_id: str = "google_cloud_default",
    impersonation_chain: str | Sequence[str] | None = None,
    check: Callable[[Model], None] | None = None,
) -> tuple[Model, ModelAuthentication]:
    """Completes a model with the `llmbeam` connection, as a job does, and returns it with its authentication.

    Args:
        model: A model spec as plain data, or the name of a Gemini model.
        llmbeam_conn_id: Connection with key, base URL, project and location.
        gcp_conn_id: Connection with the credentials for Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
        check: Raises an error for a model that cannot be used. It does not see an address of the environment.

    Raises:
        JobSpecError: The model is not a model spec, or there is no such connection.
    """
    data = model_data(model)
    if not isinstance(data, Mapping):
        parse_model(data)  # raises an error that names the problem
    hook = LLMBeamHook(llmbeam_conn_id)
    completed, environment = hook.complete_model({**data})
    parsed = parse_model(completed)
    if check is not None:
        check(parsed)
    parsed = with_base_url(parsed, os.environ, hook.log)
    return parsed, ModelAuthentication(
        parsed, environment, gcp_conn_id=gcp_conn_id, impersonation_chain=impersonation_chain
    )
