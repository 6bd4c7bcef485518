from __future__ import annotations

import base64

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.privacy.cipher import Cipher, WrongKeyError, cipher_of
from airflow_provider_llmbeam.spec.safety import Privacy

SECRET = "a secret of enough characters"


def sealed(cipher: Cipher, kind: str, value: object) -> str:
    return base64.b64encode(cipher.seal(kind, value)).decode()


@pytest.mark.parametrize("value", ["ann@example.com", "", 4930901820, 2**70, "half \ud800", b"\xff\x00"])
def test_a_value_is_restored_with_its_type(value):
    cipher = Cipher(SECRET)
    assert cipher.open("EMAIL", sealed(cipher, "EMAIL", value)) == value


def test_equal_values_become_equal_texts_for_one_key_and_kind():
    assert Cipher(SECRET).seal("EMAIL", "a@b.c") == Cipher(SECRET).seal("EMAIL", "a@b.c")
    others = [Cipher(SECRET).seal("PHONE", "a@b.c"), Cipher(SECRET + "!").seal("EMAIL", "a@b.c")]
    assert Cipher(SECRET).seal("EMAIL", "a@b.c") not in others


@pytest.mark.parametrize("damage", [lambda text: text[:-4], lambda text: "!" + text, lambda text: ""])
def test_a_damaged_value_is_not_restored(damage):
    cipher = Cipher(SECRET)
    with pytest.raises(WrongKeyError):
        cipher.open("EMAIL", damage(sealed(cipher, "EMAIL", "ann@example.com")))


def test_another_key_or_kind_restores_nothing():
    text = sealed(Cipher(SECRET), "EMAIL", "ann@example.com")
    with pytest.raises(WrongKeyError):
        Cipher(SECRET + "!").open("EMAIL", text)
    with pytest.raises(WrongKeyError):
        Cipher(SECRET).open("PHONE", text)


@pytest.mark.parametrize(("secret", "fault"), [(None, "is not set"), ("short", "has 5 characters")])
def test_a_missing_or_short_secret_is_refused_without_quoting_it(monkeypatch, secret, fault):
    if secret is not None:
        monkeypatch.setenv("OWN_KEY", secret)
    with pytest.raises(JobSpecError, match=rf"'OWN_KEY' {fault}\. Expected a secret of at least 16") as refused:
        cipher_of(Privacy(key_env="OWN_KEY"))
    assert "short'" not in str(refused.value)


def test_a_secret_in_a_connection_that_only_airflow_reads_is_asked_for_by_the_name_of_the_task():
    with pytest.raises(JobSpecError) as refused:
        cipher_of(Privacy(key_env="OWN_KEY", key_conn_id="masking"))
    assert "Airflow alone reads connection 'masking'" in str(refused.value)
    assert "Name the task, `dags/x.py::task`, in place of JSON" in str(refused.value)
