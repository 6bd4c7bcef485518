from __future__ import annotations

from types import SimpleNamespace

import pytest
from google.oauth2.credentials import Credentials

from airflow_provider_llmbeam.exceptions import AccessDeniedError
from airflow_provider_llmbeam.hooks.google.authentication import token_credentials


def test_user_credentials_give_no_id_token():
    hook = SimpleNamespace(get_credentials=lambda: Credentials(token="t"))
    with pytest.raises(AccessDeniedError, match="impersonation_chain"):
        token_credentials(hook, "https://a.run.app")
