from __future__ import annotations

import json

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import Auth, JobSpec, OpenAIModel
from airflow_provider_llmbeam.spec.allowed import check_allowed, read_options
from airflow_provider_llmbeam.spec.model import header_variable, parse_model

SERVER = {"type": "openai", "name": "m", "base_url": "https://gateway.internal/v1"}
OAUTH = {"type": "oauth", "token_url": "https://issuer.internal/token", "client_id": "c"}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"headers": {"x y": "A"}}, "`model.headers`: has a name that no header can have"),
        ({"headers": {"Host": "A"}}, "`model.headers`: has 'Host', which the client of the server sets itself"),
        ({"headers": {"x": ""}}, "must name the environment variable with the value of 'x'"),
        ({"headers": {"x": "planted-value!"}}, "must be the name of an environment variable, not the secret"),
        ({"headers": {"x": "AIRFLOW__CORE__FERNET_KEY"}}, "must not be a variable of Airflow's configuration"),
        ({"query": {"subscription-key": "planted-value!"}}, "must not hold a secret, as 'subscription-key' may"),
        ({"query": {"v": "sk-planted-planted-planted"}}, "must not hold a secret, as 'v' may"),
        ({"base_url": "https://g/v1?api-version=planted-value!"}, "a parameter in `query`"),
        ({"auth": "basic"}, "`model.auth.type`: must be 'bearer', 'api-key', 'x-api-key' or 'oauth'"),
        ({"auth": {"type": "oauth"}}, "`model.auth.token_url`: this field is needed with `type` 'oauth'"),
        ({"auth": OAUTH | {"client_id": None}}, "`model.auth.client_id`: this field is needed"),
        ({"auth": OAUTH | {"type": "api-key"}}, "`model.auth.token_url`: is for `type` 'oauth'"),
        ({"auth": {"key_file": "k"}}, "`model.auth.certificate_file`: this field is needed with `key_file`"),
        ({"auth": "api-key", "id_token_audience": "https://a.run.app"}, "cannot be set with `id_token_audience`"),
    ],
)
def test_what_no_gateway_takes_is_refused_without_a_value_that_may_be_secret(fields, fault):
    with pytest.raises(JobSpecError) as refused:
        parse_model(SERVER | fields)
    assert fault in str(refused.value)
    assert "planted" not in str(refused.value)


def test_the_key_of_each_type_has_its_header_and_oauth_needs_one():
    headers = {kind: Auth(type=kind).key_header for kind in ("bearer", "api-key", "x-api-key")}
    assert headers == {
        "bearer": ("Authorization", "Bearer "),
        "api-key": ("api-key", ""),
        "x-api-key": ("x-api-key", ""),
    }
    api = OpenAIModel(**SERVER, auth=OAUTH).api
    assert (api.authentication, api.requires_key, api.key_variables) == ("oauth", True, ("OPENAI_API_KEY",))


def test_variables_of_headers_are_secrets_of_the_job_and_need_a_dag_file_unless_a_connection_gave_them(job):
    of_connection = header_variable("x-portkey-config")
    given = job(model=SERVER | {"headers": {"x-portkey-config": of_connection, "apikey": "KONG"}})
    spec = JobSpec.parse(given)
    assert {of_connection, "KONG"} <= {*spec.read_variables}
    nothing = read_options(lambda _: "")
    check_allowed(spec, nothing, {"model": {"headers": {"apikey": "KONG"}}})
    with pytest.raises(JobSpecError, match=r"`model.headers.apikey`: 'KONG' is named neither in a Dag file"):
        check_allowed(spec, nothing, {"model": {"headers": {"other": "KONG"}}})
    assert JobSpec.from_json(json.dumps(spec.model_dump(mode="json"))) == spec


def test_workers_of_dataflow_need_a_secret_for_each_header(job):
    runner = {"type": "dataflow", "project": "acme-prod", "location": "europe-west1", "temp_uri": "gs://b/t"}
    uris = {"source": {"uri": "gs://b/in/*.jsonl", "key": ["id"]}, "sink": {"uri": "gs://b/out"}}
    given = job(model=SERVER | {"headers": {"apikey": "KONG"}}, **uris, runner=runner)
    (problem,) = JobSpec.problems(given)
    assert problem.field == "runner.environment_secrets"
    assert "the workers need 'KONG' for `model.headers`" in problem.want
    runner["environment_secrets"] = {"KONG": "projects/p/secrets/kong/versions/latest"}
    assert JobSpec.problems(given) == ()
