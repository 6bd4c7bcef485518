"""Finds the facts of all checks of a job, and judges them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, requires, version
from urllib.parse import urlsplit

import requests

from airflow_provider_llmbeam import __version__
from airflow_provider_llmbeam.doctor.checks import (
    Check,
    ExistsCheck,
    FlinkCheck,
    KeyCheck,
    LocationCheck,
    ModelCheck,
    PackagesCheck,
    PermissionCheck,
    QuotaCheck,
    RegionCheck,
    Resource,
    ServersCheck,
    ServicesCheck,
    SubnetworkCheck,
    TemplateCheck,
    cloud_checks,
    local_checks,
    servers_of,
)
from airflow_provider_llmbeam.doctor.cloud import Cloud
from airflow_provider_llmbeam.doctor.finding import Finding, Verdict
from airflow_provider_llmbeam.doctor.judge import (
    grant,
    judge_clock,
    judge_existence,
    judge_key,
    judge_location,
    judge_models,
    judge_packages,
    judge_permissions,
    judge_quota,
    judge_servers,
    judge_services,
    judge_subnetwork,
    judge_template,
)
from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudNotFoundError, LLMBeamError
from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook
from airflow_provider_llmbeam.hooks.google.authentication import ModelAuthentication, uses_google
from airflow_provider_llmbeam.hooks.model_list import read_models
from airflow_provider_llmbeam.hooks.storage import StorageHook
from airflow_provider_llmbeam.providers.errors import ApiNotFoundError, ApiUnavailableError
from airflow_provider_llmbeam.providers.registry import part_of
from airflow_provider_llmbeam.providers.rest import RestClient, session_with
from airflow_provider_llmbeam.quota.hook import QuotaHook
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.model import Model
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.transport.flink import FlinkCluster

#: A host of Google that answers every request, with its time.
_CLOCK_HOST = "https://storage.googleapis.com"
_TIMEOUT_SECONDS = (4.0, 10.0)
_LOGIN = "gcloud auth application-default login"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """A job, and with whose rights it runs.

    Attributes:
        spec: The job; `None` examines this machine and the account alone.
        secrets: Environment variables with the secrets of its connections.
        gcp_conn_id: Connection with the credentials for Google Cloud.
        impersonation_chain: Service account that submits, or a chain of them.
    """

    spec: JobSpec | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)
    gcp_conn_id: str = "google_cloud_default"
    impersonation_chain: str | Sequence[str] | None = None


def examine(patient: Patient, now: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Yields the findings of all checks; nothing is changed, and no model is asked for an answer.

    Args:
        patient: What is examined.
        now: Seconds of the Unix epoch.
    """
    spec = patient.spec
    for check in local_checks(spec):
        yield from _guarded(check, lambda check=check: _examine_here(check, patient))  # type: ignore[misc]
    if spec is None or uses_google(spec) or isinstance(spec.runner, DataflowRunner):
        yield from _examine_google(patient, now)


def _examine_google(patient: Patient, now: Callable[[], float]) -> Iterator[Finding]:
    """Yields what concerns Google Cloud; without network or credentials no more than that."""
    unmet: Verdict = "unknown" if patient.spec is None else "fault"  # not every job needs Google Cloud
    try:
        reply = requests.head(_CLOCK_HOST, timeout=_TIMEOUT_SECONDS, allow_redirects=False)
    except requests.RequestException as error:
        proxy = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")
        way = "through the proxy of HTTPS_PROXY" if proxy else "without a proxy"
        sentence = f"{_CLOCK_HOST} does not answer {way}: {type(error).__name__}."
        remedy = f"curl -sSI {_CLOCK_HOST}; correct HTTPS_PROXY of the worker, or its firewall"
        yield Finding(subject="network", verdict=unmet, sentence=sentence, remedy=remedy)
        return
    yield Finding(subject="network", verdict="holds", sentence=f"{_CLOCK_HOST} answers")
    if date := reply.headers.get("Date"):
        yield judge_clock(parsedate_to_datetime(date).timestamp() - now())
    try:
        cloud = Cloud(patient.gcp_conn_id, patient.impersonation_chain)
        account, project = cloud.account(), cloud.project
    except LLMBeamError as error:
        exists = "there is no connection" not in str(error)
        add = f"airflow connections add {patient.gcp_conn_id} --conn-type google_cloud_platform --conn-extra …"
        yield Finding(
            subject=f"credentials of {patient.gcp_conn_id}",
            verdict=unmet,
            sentence=str(error),
            remedy=_LOGIN if exists else add,
        )
        return
    yield Finding(subject="credentials", verdict="holds", sentence=f"{account}, project {project}")
    if patient.spec is None:
        return
    workers = _workers_account(patient.spec, cloud)
    if not workers and isinstance(patient.spec.runner, DataflowRunner):
        sentence = (
            "is the default one of Compute Engine, which this account may not see; its rights are not checked."
        )
        yield Finding(
            subject="account of the workers",
            verdict="unknown",
            sentence=sentence,
            remedy="set `runner.service_account`",
        )
    clouds = {"": cloud, workers: Cloud(patient.gcp_conn_id, workers) if workers else cloud}
    for check in cloud_checks(patient.spec, project, workers):
        yield from _guarded(check, lambda check=check: _examine_cloud(check, patient, clouds, account))  # type: ignore[misc]


def _workers_account(spec: JobSpec, cloud: Cloud) -> str:
    """Returns the email of the account of the Dataflow workers; empty if there are none, or it is not known."""
    if not isinstance(spec.runner, DataflowRunner):
        return ""
    if spec.runner.service_account:
        return spec.runner.service_account
    try:
        return cloud.workers_account(spec.runner.project or cloud.project)
    except LLMBeamError:
        return ""


def _guarded(check: Check, find: Callable[[], list[Finding]]) -> list[Finding]:
    """Returns the findings; an error is one: a fault, unless only the account may not see the fact."""
    try:
        return find()
    except LLMBeamError as error:
        verdict: Verdict = "unknown" if isinstance(error, AccessDeniedError) else "fault"
        return [
            Finding(subject=_subject(check), verdict=verdict, sentence=str(error), remedy=_remedy(check, error))
        ]


def _subject(check: Check) -> str:
    match check:
        case ServicesCheck():
            return f"APIs of project {check.project}"
        case PermissionCheck():
            return f"{check.role} on {check.resource}"
        case RegionCheck():
            return f"Dataflow in {check.location}"
        case TemplateCheck():
            return f"Flex Template {check.uri}"
        case SubnetworkCheck():
            return f"subnetwork {check.name.rpartition('/')[2]}"
        case ModelCheck() | QuotaCheck():
            return f"{'model' if isinstance(check, ModelCheck) else 'quota of'} {check.model.name}"
        case ExistsCheck() | LocationCheck():
            return str(check.resource)
        case PackagesCheck():
            return "packages"
        case KeyCheck():
            return f"key {check.name}"
        case FlinkCheck():
            return f"Flink at {check.rest_url}"
        case ServersCheck():
            return check.subject


def _remedy(check: Check, error: LLMBeamError) -> str:
    """Returns the command that fixes what raised an error; its sentence has the rest."""
    match check:
        case ModelCheck(model=model) if isinstance(error, ApiNotFoundError):
            return f"set `model.name` and `model.location` to a model of {model.api.service} in that location"
        case ModelCheck(model=model) if _is_about_the_key(model, error):
            return "airflow connections add llmbeam_default --conn-type llmbeam --conn-password KEY"
        case ModelCheck(model=model):
            origin = urlsplit(model.address)
            return f"curl -sSI {origin.scheme}://{origin.netloc}  # on the worker: address, firewall, HTTPS_PROXY"
        case RegionCheck():
            return "set `runner.location` to a region of Dataflow: gcloud compute regions list"
        case TemplateCheck() if isinstance(error, CloudNotFoundError):
            return "scripts/build-template --image IMAGE --output DIRECTORY"
        case FlinkCheck():
            return f"curl -sS {check.rest_url}/overview  # on the worker: `runner.rest_url`, firewall"
        case SubnetworkCheck():
            return f"gcloud compute networks subnets list --project={check.project} --regions={check.location}"
        case PermissionCheck() if check.account and isinstance(error, AccessDeniedError):
            return f"{grant_to_impersonate(check.account)}  # lets the doctor see it"
    return ""


def _is_about_the_key(model: Model, error: LLMBeamError) -> bool:
    """Whether a server refused a request with a key, or there is none; the key of Google is refused with a 400."""
    return model.api.authentication == "api_key" and not isinstance(error, ApiUnavailableError)


def grant_to_impersonate(account: str) -> str:
    """Returns the command that lets the account of the connection impersonate another one."""
    return grant(Resource(kind="service_account", name=account), "ACCOUNT", "roles/iam.serviceAccountTokenCreator")


def _examine_here(check: Check, patient: Patient) -> list[Finding]:
    match check:
        case PackagesCheck():
            return [judge_packages(_wrong_packages(check.extras), check.extras, __version__)]
        case ModelCheck():
            return [_ask(check.model, patient)]
        case FlinkCheck():
            slots = FlinkCluster(check.rest_url).overview()["slots-available"]
            return [Finding(subject=_subject(check), verdict="holds", sentence=f"answers; {slots} slots are free")]
        case ServersCheck():
            secrets = patient.spec.environment_secrets if patient.spec else {}
            return [judge_servers(check, _connect(check, patient), is_secret=check.variable in secrets)]
    raise NotImplementedError(check)


def _connect(check: ServersCheck, patient: Patient) -> dict[tuple[str, int], str]:
    """Connects to one server after the other until one accepts; returns the error of each."""
    errors: dict[tuple[str, int], str] = {}
    value = patient.secrets.get(check.variable) or os.environ.get(check.variable, "")
    for server in servers_of(check, value):
        try:
            socket.create_connection(server, timeout=_TIMEOUT_SECONDS[0]).close()
        except OSError as error:
            errors[server] = error.strerror or str(error)
            continue
        errors[server] = ""
        break
    return errors


def _ask(model: Model, patient: Patient) -> Finding:
    """Counts the tokens of three words, or lists the models: both are free."""
    part, secrets = part_of(model, "probe"), patient.spec.environment_secrets if patient.spec else {}
    if model.api.key(secrets) and not model.api.key(patient.secrets, os.environ):
        sentence = "its key is in Secret Manager, and not on this machine; `--send` asks it."
        return Finding(subject=f"model {model.name}", verdict="unknown", sentence=sentence)
    authenticate = ModelAuthentication(
        model, patient.secrets, gcp_conn_id=patient.gcp_conn_id, impersonation_chain=patient.impersonation_chain
    )
    if hasattr(part, "count_request") and (count := part.count_request(model)) is not None:
        with session_with(authenticate, model.api) as session:
            RestClient(session, model.api.service).send("POST", count.url, count.body)
        return judge_models(model, [model.name])
    page = read_models(model, authenticate) if hasattr(part, "model_list") else None
    return judge_models(model, page.names if page is not None and page.is_whole else None)


def _wrong_packages(extras: Sequence[str]) -> list[str]:
    """Returns the requirements of this package, with extras, that are not met here."""
    from packaging.requirements import Requirement

    wrong = []
    for text in requires("airflow-provider-llmbeam") or ():
        need = Requirement(text)
        if need.marker is not None and not any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        try:
            found = version(need.name)
        except PackageNotFoundError:
            wrong.append(f"{need.name}{need.specifier}, which is not installed")
            continue
        if not need.specifier.contains(found, prereleases=True):
            wrong.append(f"{need.name}{need.specifier}, and has {found}")
    return wrong


def _examine_cloud(check: Check, patient: Patient, clouds: Mapping[str, Cloud], account: str) -> list[Finding]:
    cloud = clouds[""]
    match check:
        case ServicesCheck():
            return judge_services(check, cloud.services(check.project, check.services))
        case PermissionCheck():
            held = clouds[check.account].held(check.resource, check.permissions)
            return [judge_permissions(check, check.account or account, held)]
        case ExistsCheck() | LocationCheck():
            found = cloud.find(check.resource)
            if found is None or isinstance(check, ExistsCheck):
                return [judge_existence(check, exists=found is not None)]
            return [judge_location(check, str(found.get("location", "")))]
        case KeyCheck():
            return [judge_key(check, cloud.find(Resource(kind="key", name=check.name)))]
        case RegionCheck():
            hook = DataflowJobHook(check.location, check.project, patient.gcp_conn_id, patient.impersonation_chain)
            hook.active()
            return [Finding(subject=_subject(check), verdict="holds", sentence="answers")]
        case TemplateCheck():
            content = StorageHook(None, patient.gcp_conn_id, patient.impersonation_chain).read(check.uri)
            return [judge_template(check, content, __version__)]
        case SubnetworkCheck():
            has_access = cloud.has_google_access(check.project, check.location, check.name)
            return [judge_subnetwork(check, has_google_access=has_access)]
        case QuotaCheck():
            hook_of_quota = QuotaHook(
                check.model,
                limits=check.limits,
                gcp_conn_id=patient.gcp_conn_id,
                impersonation_chain=patient.impersonation_chain,
            )
            return judge_quota(check, hook_of_quota.health(check.model.location))
    raise NotImplementedError(check)
