from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.safety import Privacy
from airflow_provider_llmbeam.spec.safety.privacy import PatternsDetector, kinds_of

JOB = {
    "name": "job",
    "source": {"uri": "gs://b/rows.jsonl", "key": "id"},
    "prompt": {"template": "{{ row.text }}"},
    "model": {"type": "gemini", "project": "my-project"},
    "sink": {"uri": "gs://b/out"},
}


def refused(privacy, **changes):
    with pytest.raises(JobSpecError) as error:
        JobSpec.parse(JOB | {"safety": {"privacy": privacy}} | changes)
    return str(error.value)


def test_general_kinds_and_those_of_the_countries_are_found_by_default():
    assert kinds_of(PatternsDetector(countries=("IT",))) == (
        *("EMAIL", "PHONE", "CREDIT_CARD", "IBAN", "IP_ADDRESS", "MAC_ADDRESS", "CRYPTO_WALLET"),
        "IT_FISCAL_CODE",
    )


def test_the_action_of_a_kind_goes_before_that_of_all():
    privacy = Privacy(action="hash", actions={"EMAIL": "drop"})
    assert (privacy.action_of("EMAIL"), privacy.action_of("PHONE")) == ("drop", "hash")


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        (
            {"actions": {"MAIL": "drop"}},
            ".actions.MAIL`: is no kind that the detectors find; did you mean `EMAIL`?",
        ),
        (
            {"actions": {"X": "drop"}, "detectors": ["patterns"]},
            "is no kind that the detectors find: CREDIT_CARD, ",
        ),
        ({"actions": {"EMAIL": "encrypt"}}, "must be 'mask', 'hash', 'drop' or 'fail'; got 'encrypt'"),
        ({"detectors": [{"type": "patterns", "entities": ["NAME"]}]}, "`safety.privacy.detectors.0.entities.0`: "),
        ({"detectors": [{"type": "custom", "name": "X"}]}, "`safety.privacy.detectors.0.pattern`: exactly one of"),
        ({"detectors": [{"type": "custom", "name": "x", "pattern": "a"}]}, "capital letters"),
        ({"detectors": [{"type": "custom", "name": "X", "pattern": "("}]}, "is not a regular expression"),
        ({"detectors": [{"type": "custom", "name": "X", "pattern": "a*"}]}, "must not match an empty text"),
        ({"detectors": ["names"]}, "`safety.privacy.detectors.0.type`"),
        ({"key_env": "my secret!"}, "must be the name of an environment variable, not the secret"),
        ({"on_altered": "mend"}, "`safety.privacy.on_altered`: must be 'keep', 'fail' or 'repair'; got 'mend'"),
        ({"columns": []}, "`safety.privacy.columns`"),
    ],
)
def test_a_fault_names_its_field(privacy, message):
    assert message in refused(privacy)


def test_a_key_by_mistake_is_not_quoted():
    assert "hunter2" not in refused({"key_env": "hunter2 is my key"})


def test_media_need_columns_as_files_are_not_masked():
    prompt = {"template": "{{ row.text }}", "media": [{"uri": "gs://b/{{ row.file }}.png"}]}
    assert "`safety.privacy.columns`: this field is needed with `prompt.media`" in refused({}, prompt=prompt)
    assert JobSpec.parse(JOB | {"prompt": prompt, "safety": {"privacy": {"columns": ["text"]}}})


def test_a_vector_has_no_placeholder_that_could_be_altered():
    changes = {"task": "embed", "model": {"type": "echo"}}
    assert "`safety.privacy.on_altered`: must be 'keep' to embed" in refused({"on_altered": "fail"}, **changes)


def test_workers_of_dataflow_need_the_key():
    runner = {"type": "dataflow", "location": "europe-west1"}
    assert "the workers need 'LLMBEAM_PRIVACY_KEY' for `safety.privacy`" in refused({}, runner=runner)
    secrets = {"environment_secrets": {"LLMBEAM_PRIVACY_KEY": "projects/p/secrets/s/versions/1"}}
    spec = JobSpec.parse(JOB | {"runner": runner | secrets, "safety": {"privacy": {}}})
    assert "LLMBEAM_PRIVACY_KEY" in spec.secret_variables
    assert JobSpec.parse(JOB | {"runner": runner | {"container_image": "image"}, "safety": {"privacy": {}}})
