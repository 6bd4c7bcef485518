"""Permissions, APIs, accounts and subnetworks, with Google's clients where there is one among the dependencies."""

from __future__ import annotations

import pytest
from google.auth import default
from google.auth.transport.requests import AuthorizedSession
from google.cloud import bigquery, secretmanager, storage

PROJECT = "llmbeam-sandbox"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
READ, DELETE = "storage.objects.get", "storage.objects.delete"


@pytest.fixture
def session(google):
    credentials, _ = default(scopes=[SCOPE])
    with AuthorizedSession(credentials) as opened:
        yield opened


def test_a_permission_is_held_until_it_is_denied(sandbox, google):
    bucket = storage.Client().bucket("rows")
    assert bucket.test_iam_permissions([READ, DELETE]) == [READ, DELETE]
    sandbox.iam.deny(DELETE, on="rows")
    assert bucket.test_iam_permissions([READ, DELETE]) == [READ]
    sandbox.iam.clear()
    assert bucket.test_iam_permissions([DELETE]) == [DELETE]


def test_permissions_on_a_table_and_on_a_missing_secret(sandbox, google):
    reply = bigquery.Client().test_iam_permissions(f"{PROJECT}.shop.moods", ["bigquery.tables.getData"])
    assert reply == {"permissions": ["bigquery.tables.getData"]}
    client = secretmanager.SecretManagerServiceClient(transport="rest")
    name = f"projects/{PROJECT}/secrets/none"
    request = {"resource": name, "permissions": ["secretmanager.versions.access"]}
    assert [*client.test_iam_permissions(request).permissions] == []


def test_a_disabled_api_is_named(sandbox, session):
    sandbox.iam.disabled.add("dataflow.googleapis.com")
    url = f"https://serviceusage.googleapis.com/v1/projects/{PROJECT}/services:batchGet"
    names = [f"projects/{PROJECT}/services/{name}.googleapis.com" for name in ("dataflow", "compute")]
    found = session.get(url, params={"names": names}).json()["services"]
    assert [each["state"] for each in found] == ["DISABLED", "ENABLED"]


def test_an_account_and_a_subnetwork_may_be_missing(sandbox, session):
    account = f"https://iam.googleapis.com/v1/projects/-/serviceAccounts/a@{PROJECT}.iam.gserviceaccount.com"
    assert session.get(account).ok
    sandbox.iam.accounts = set()
    assert session.get(account).status_code == 404
    url = f"https://compute.googleapis.com/compute/v1/projects/{PROJECT}/regions/us-central1/subnetworks/inner"
    assert session.get(url).status_code == 404
    sandbox.iam.subnetworks["inner"] = True
    assert session.get(url).json()["privateIpGoogleAccess"] is True
