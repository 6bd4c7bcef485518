from __future__ import annotations

import pytest
from google.auth import credentials as auth
from google.oauth2.credentials import Credentials

from airflow_provider_llmbeam.exceptions import AccessDeniedError
from airflow_provider_llmbeam.hooks.google.tokens import access_token, id_token


def test_user_credentials_give_no_id_token():
    with pytest.raises(AccessDeniedError, match="impersonation_chain"):
        id_token(Credentials(token="t"), "https://a.run.app")


def test_an_invalid_token_is_renewed():
    class Fresh(auth.Credentials):
        def refresh(self, request):
            self.token = "fresh"

    assert access_token(Fresh()) == "fresh"
