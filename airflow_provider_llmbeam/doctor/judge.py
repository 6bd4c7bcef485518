"""Findings from facts, and the command that fixes each fault. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_provider_llmbeam.doctor.checks import (
    ExistsCheck,
    KeyCheck,
    LocationCheck,
    PermissionCheck,
    QuotaCheck,
    Resource,
    ServersCheck,
    ServicesCheck,
    SubnetworkCheck,
    TemplateCheck,
)
from airflow_provider_llmbeam.doctor.finding import Finding
from airflow_provider_llmbeam.quota.health import QuotaHealth
from airflow_provider_llmbeam.spec.model import Model
from airflow_provider_llmbeam.spec.usage_tier import thresholds_of

#: Google refuses an assertion whose times are not "in a reasonable timeframe", as its message says, and does not
#: document how much that is; a clock that NTP keeps differs by less than this.
MAX_CLOCK_SECONDS = 60.0
_DISTRIBUTION = "airflow-provider-llmbeam"
_VERSION = re.compile(r"\bVersion (\d[\w.]*\w)\.")


def judge_clock(offset_seconds: float) -> Finding:
    """Judges the clock of this machine, by its difference to that of Google's servers."""
    if abs(offset_seconds) <= MAX_CLOCK_SECONDS:
        return Finding(subject="clock", verdict="holds", sentence=f"differs by {abs(offset_seconds):.0f} s")
    way = "slow" if offset_seconds > 0 else "fast"
    sentence = (
        f"is {abs(offset_seconds):,.0f} s {way}: Google refuses the tokens of a key that are signed with it."
    )
    return Finding(subject="clock", verdict="fault", sentence=sentence, remedy="sudo timedatectl set-ntp true")


def judge_services(check: ServicesCheck, states: Mapping[str, str]) -> list[Finding]:
    """Judges APIs by their states, `ENABLED` or `DISABLED`."""
    findings = []
    for service in check.services:
        is_on = states.get(service) == "ENABLED"
        findings.append(
            Finding(
                subject=f"API {service}",
                verdict="holds" if is_on else "fault",
                sentence=f"{'enabled' if is_on else 'is disabled'} in project {check.project}",
                remedy="" if is_on else f"gcloud services enable {service} --project={check.project}",
            )
        )
    return findings


def judge_permissions(check: PermissionCheck, account: str, held: Collection[str]) -> Finding:
    """Judges the permissions of an account on a resource.

    Args:
        check: The check.
        account: Email of the account.
        held: The permissions that it has.
    """
    missing = [name for name in check.permissions if name not in held]
    subject = f"{check.role} on {check.resource}"
    if not missing:
        return Finding(subject=subject, verdict="holds", sentence=f"{account} has its permissions")
    sentence = f"{account} lacks {', '.join(missing)}"
    if check.resource.kind == "dataset":
        sentence += " in the project, and the dataset does not name it; a right by a group is not seen"
    remedy = grant(check.resource, account, check.role)
    return Finding(subject=subject, verdict="fault", sentence=f"{sentence}.", remedy=remedy)


def grant(resource: Resource, account: str, role: str) -> str:
    """Returns the command that gives an account a role on a resource."""
    kind = "serviceAccount" if account.endswith("gserviceaccount.com") else "user"
    given = f"--member={kind}:{account} --role={role}"
    name = resource.name
    match resource.kind:
        case "project":
            return f"gcloud projects add-iam-policy-binding {name} {given}"
        case "bucket":
            return f"gcloud storage buckets add-iam-policy-binding gs://{name} {given}"
        case "dataset" | "table":
            project, _, rest = name.partition(".")
            return f"bq add-iam-policy-binding {given} {project}:{rest}"
        case "secret":
            return f"gcloud secrets add-iam-policy-binding {name} {given}"
        case "service_account":
            return f"gcloud iam service-accounts add-iam-policy-binding {name} {given}"
        case "topic" | "subscription":
            return f"gcloud pubsub {resource.kind}s add-iam-policy-binding {name} {given}"
        case "key":
            return f"gcloud kms keys add-iam-policy-binding {name} {given}"


def judge_existence(check: ExistsCheck | LocationCheck, *, exists: bool) -> Finding:
    """Judges whether what a spec names exists."""
    resource = check.resource
    if exists:
        return Finding(subject=str(resource), verdict="holds", sentence="exists")
    project, _, rest = resource.name.partition(".")
    location = getattr(check, "location", "") or "LOCATION"
    remedies = {
        "bucket": f"gcloud storage buckets create gs://{resource.name} --location={location}",
        "dataset": f"bq mk --dataset --location={location} {project}:{rest}",
        "table": f"bq show {project}:{rest}  # then correct `{check.field}`",
        "secret": f"gcloud secrets create {resource.name} --data-file=-",
        "service_account": f"gcloud iam service-accounts create {resource.name.partition('@')[0]}",
    }
    sentence = f"`{check.field}`: there is none of this name, or the account may not see it."
    return Finding(
        subject=str(resource), verdict="fault", sentence=sentence, remedy=remedies.get(resource.kind, "")
    )


def judge_key(check: KeyCheck, found: Mapping[str, Any] | None) -> Finding:
    """Judges a key of Cloud KMS.

    Args:
        check: The check.
        found: The key: `None` if there is none, empty if the account may not see it.
    """
    subject = f"key {check.name}"
    if found is None:
        sentence = "`kms_key_name`: there is none of this name."
        remedy = f"gcloud kms keys describe {check.name}  # then correct `kms_key_name`"
        return Finding(subject=subject, verdict="fault", sentence=sentence, remedy=remedy)
    if not found:
        sentence = "this account may not see it; what encrypts with it are the agents of the services."
        return Finding(subject=subject, verdict="unknown", sentence=sentence)
    version = found.get("primary", {})
    if (state := version.get("state")) != "ENABLED":
        sentence = f"its primary version is in state {state}, so that nothing is written or read with it."
        remedy = (
            f"gcloud kms keys versions enable {version.get('name', f'{check.name}/cryptoKeyVersions/VERSION')}"
        )
        return Finding(subject=subject, verdict="fault", sentence=sentence, remedy=remedy)
    return Finding(subject=subject, verdict="holds", sentence="its primary version is enabled")


def judge_servers(check: ServersCheck, errors: Mapping[tuple[str, int], str], *, is_secret: bool) -> Finding:
    """Judges the servers of a source or a sink.

    Args:
        check: The check.
        errors: Error of the connection to each server, up to the first that accepted one, whose error is empty.
        is_secret: Whether the variable that names them is in Secret Manager.
    """
    if not errors:
        if is_secret:
            sentence = f"{check.variable} is in Secret Manager, and not on this machine; `llmbeam run` asks it."
            return Finding(subject=check.subject, verdict="unknown", sentence=sentence)
        sentence = f"no server is named: expected `conn_id` in a task, or {check.variable} in the environment."
        remedy = f"export {check.variable}=…"
        return Finding(subject=check.subject, verdict="fault", sentence=sentence, remedy=remedy)
    (host, port), error = [*errors.items()][-1]
    if not error:
        return Finding(subject=check.subject, verdict="holds", sentence=f"{host}:{port} accepts connections")
    sentence = "; ".join(f"{host}:{port} accepts no connection: {error}" for (host, port), error in errors.items())
    remedy = f"nc -vz {host} {port}  # on the worker: address, firewall"
    return Finding(subject=check.subject, verdict="fault", sentence=f"{sentence}.", remedy=remedy)


def judge_location(check: LocationCheck, location: str) -> Finding:
    """Judges the location of a bucket or a dataset; that of a bucket in several regions always fits."""
    subject, wanted, found = f"location of {check.resource}", check.location.lower(), location.lower()
    is_other = (
        wanted not in ("", found)
        if check.resource.kind == "dataset"
        else _is_region(found) and (wanted not in ("", found))
    )
    if not is_other:
        return Finding(subject=subject, verdict="holds", sentence=found or "not shown to this account")
    if check.resource.kind == "dataset":
        remedy = f"set `{check.field}` to {location!r}, or leave it out"
    else:
        remedy = f"gcloud storage buckets create gs://{check.resource.name}-{wanted} --location={wanted}"
    sentence = f"is in {found}, and `{check.field}` is {check.location!r}."
    return Finding(subject=subject, verdict="fault", sentence=sentence, remedy=remedy)


def _is_region(location: str) -> bool:
    return re.fullmatch(r"[a-z]+-[a-z]+\d+", location) is not None


def judge_template(check: TemplateCheck, content: str, release: str) -> Finding:
    """Judges a Flex Template, whose workers must have this version of the package.

    Args:
        check: The check.
        content: The file.
        release: Version that is installed here.
    """
    subject, build = f"Flex Template {check.uri}", "scripts/build-template --image IMAGE --output DIRECTORY"
    try:
        fields: Any = json.loads(content)
        description = fields["metadata"].get("description", "")
        image = fields["image"]
    except (ValueError, KeyError, TypeError, AttributeError):
        sentence = "is no template: it has no image or no metadata."
        return Finding(subject=subject, verdict="fault", sentence=sentence, remedy=build)
    found = _VERSION.search(str(description))
    if found is None:
        sentence = f"has image {image}, and does not say its version."
        return Finding(subject=subject, verdict="unknown", sentence=sentence, remedy=build)
    if found[1] != release:
        sentence = f"has image {image} of version {found[1]}, and {release} is installed here."
        return Finding(subject=subject, verdict="fault", sentence=sentence, remedy=build)
    return Finding(subject=subject, verdict="holds", sentence=f"has image {image} of version {release}")


def judge_subnetwork(check: SubnetworkCheck, *, has_google_access: bool) -> Finding:
    """Judges a subnetwork of machines without public addresses."""
    name = check.name.rpartition("/")[2]
    if has_google_access:
        return Finding(subject=f"subnetwork {name}", verdict="holds", sentence="has Private Google Access")
    remedy = (
        f"gcloud compute networks subnets update {name} --region={check.location} --project={check.project} "
        "--enable-private-ip-google-access"
    )
    sentence = "has no Private Google Access, so that workers without public addresses reach no API of Google."
    return Finding(subject=f"subnetwork {name}", verdict="fault", sentence=sentence, remedy=remedy)


def judge_models(model: Model, names: Collection[str] | None) -> Finding:
    """Judges a model by the models that its server lists; `None` if it lists none, or not all."""
    subject = f"model {model.name}"
    if names is None:
        sentence = f"{model.api.service} does not list its models; `--send` asks it."
        return Finding(subject=subject, verdict="unknown", sentence=sentence)
    by = "key" if model.api.authentication == "api_key" else "account"
    if model.name.rpartition("/")[2] in {name.rpartition("/")[2] for name in names}:
        return Finding(
            subject=subject, verdict="holds", sentence=f"{model.api.service} has it, and accepts the {by}"
        )
    known = ", ".join(sorted(names)[:5])
    sentence = f"{model.api.service} has no such model; it has {known or 'none'}."
    return Finding(
        subject=subject, verdict="fault", sentence=sentence, remedy="set `model.name` to one that it has"
    )


def judge_quota(check: QuotaCheck, health: QuotaHealth) -> list[Finding]:
    """Judges quota and usage tier of a model."""
    model = check.model
    is_exhausted = health.verdict == "exhausted"
    quota = Finding(
        subject=f"quota of {model.name}",
        verdict="unknown" if health.verdict == "unknown" else "fault" if is_exhausted else "holds",
        sentence=health.sentence,
        remedy=f"ask for quota: console.cloud.google.com/iam-admin/quotas?project={model.project}"
        if is_exhausted
        else "",
    )
    if not (tiers := thresholds_of(model)):
        return [quota]
    has_rate = check.limits.requests_per_minute is not None or check.limits.tokens_per_minute is not None
    if check.limits.usage_tier is not None or has_rate:
        tier = Finding(subject=f"usage tier of {model.name}", verdict="holds", sentence="`limits` states the rate")
    else:
        shown = ", ".join(f"{number}: {tokens:,} tokens/min" for number, tokens in tiers.items())
        tier = Finding(
            subject=f"usage tier of {model.name}",
            verdict="unknown",
            sentence=f"`limits.usage_tier` is not set, so that the pace is found by trial ({shown}).",
            remedy="set `limits.usage_tier`, or `usage_tier` in the extra of the connection",
        )
    return [quota, tier]


def judge_packages(wrong: Sequence[str], extras: Sequence[str], release: str) -> Finding:
    """Judges the packages of this environment.

    Args:
        wrong: Requirements that it does not meet, with what it has.
        extras: Extras that the job needs.
        release: Version of this package.
    """
    if not wrong:
        return Finding(
            subject="packages", verdict="holds", sentence=f"{_DISTRIBUTION} {release} has what it requires"
        )
    names = f"[{','.join(extras)}]" if extras else ""
    sentence = f"{_DISTRIBUTION} {release} requires {'; '.join(wrong)}."
    return Finding(
        subject="packages", verdict="fault", sentence=sentence, remedy=f"pip install '{_DISTRIBUTION}{names}'"
    )
