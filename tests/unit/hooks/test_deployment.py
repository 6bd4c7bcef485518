from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.deployment import deployment_name, own_deployment, require_deployment
from airflow_provider_llmbeam.spec.fields.names import is_deployment_name

KEY = f"{'k' * 43}="
OTHER_KEY = f"{'o' * 43}="


def test_the_option_is_the_name():
    assert deployment_name("production", "https://airflow.example.com", KEY) == "production"


@pytest.mark.parametrize("option", ["Production", "1st", "a_b", "a" * 41, "trailing-", "ä", " "])
def test_an_invalid_option_is_refused_with_its_value(option):
    with pytest.raises(JobSpecError, match=re.escape(repr(option))):
        deployment_name(option, "", KEY)


def test_the_public_address_is_the_second_choice_and_stays_readable():
    found = deployment_name("", "https://user:secret@airflow.example.com:8443/prod/", KEY)
    assert found.startswith("at-airflow-example-com-8443")
    assert "secret" not in found
    assert found == deployment_name("", "http://airflow.example.com:8443/prod", "")
    assert found != deployment_name("", "https://airflow.example.com:8443/dev", KEY)


@pytest.mark.parametrize("address", ["", "http://localhost:8080", "http://127.0.0.1", "http://[::1]:8080", "/x"])
def test_a_local_address_does_not_tell_two_deployments_apart(address):
    found = deployment_name("", address, KEY)
    assert found.startswith("airflow-")
    assert KEY not in found
    assert deployment_name("", address, OTHER_KEY) != found
    assert deployment_name("", address, "") == ""


@pytest.mark.parametrize("key", ["{FERNET_KEY}", "short", " "])
def test_what_is_no_key_does_not_tell_two_deployments_apart(key):
    assert deployment_name("", "", key) == ""


@pytest.mark.full
def test_two_airflows_that_are_not_configured_never_share_a_name(tmp_path):
    """Some versions write a configuration with a key of its own, others return the template of the key."""
    code = "from airflow_provider_llmbeam.hooks.deployment import own_deployment; print(repr(own_deployment()))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    names = set()
    for home in ("one", "other"):
        command = [sys.executable, "-W", "ignore", "-c", code]
        whole = {**environment, "AIRFLOW_HOME": str(tmp_path / home)}
        names.add(subprocess.check_output(command, env=whole, text=True).splitlines()[-1])
    assert names == {"''"} or len(names) == 2


def test_a_new_fernet_key_does_not_change_the_name_while_the_old_one_is_kept():
    assert deployment_name("", "", f"{OTHER_KEY}, {KEY}") == deployment_name("", "", KEY)


@given(st.text(max_size=80), st.text(max_size=80))
def test_every_derived_name_is_valid(host, key):
    found = deployment_name("", f"https://{host}/", key)
    assert found == "" or is_deployment_name(found)


def test_google_cloud_needs_a_name_and_the_error_says_how_to_set_it(monkeypatch):
    monkeypatch.setenv("AIRFLOW__LLMBEAM__DEPLOYMENT", "")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "")
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "")
    assert own_deployment() == ""
    with pytest.raises(JobSpecError, match=r"Set AIRFLOW__LLMBEAM__DEPLOYMENT.*Nothing was sent or billed\."):
        require_deployment()
    monkeypatch.setenv("AIRFLOW__LLMBEAM__DEPLOYMENT", "staging")
    assert require_deployment() == "staging"
