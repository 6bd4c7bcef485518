"""The client of `content:inspect` as a backend of the engine, which paces and retries its requests."""

from __future__ import annotations

import json

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.token_counts import NO_TOKENS
from airflow_provider_llmbeam.pipeline.privacy.dlp.table import SERVICE
from airflow_provider_llmbeam.providers.gemini.client import error_of
from airflow_provider_llmbeam.providers.http import HttpBackend, HttpClient
from airflow_provider_llmbeam.providers.reported import json_object
from airflow_provider_llmbeam.spec.safety.privacy import DlpDetector
from airflow_provider_llmbeam.transport.google_auth import GoogleToken, default_credentials


class InspectBackend(HttpBackend):
    """Sends the texts of prompts, which are bodies of requests, to `content:inspect`.

    Args:
        detector: The detector.
        project: Project that is billed.

    Raises:
        JobSpecError: There are no Google credentials.
    """

    def __init__(self, detector: DlpDetector, project: str) -> None:
        address = detector.base_url or "https://dlp.googleapis.com"
        self._url = f"{address}/v2/projects/{project}/locations/{detector.location}/content:inspect"
        credentials = default_credentials(f"{SERVICE} (`safety.privacy.detectors`)")
        super().__init__(HttpClient(self._url, GoogleToken(credentials)))

    async def complete(self, prompt: Prompt) -> Reply:
        """Sends one request; the text of the reply is its JSON."""
        async with self._http.post(self._url, prompt.text.encode()) as response:
            if response.status != 200:
                text = await response.error_text()
                raise error_of(response.status, response.headers, text)
            content = await response.read()
        return Reply(
            text=json.dumps(json_object(content, f"no reply of {SERVICE}", error_of)),
            finish_reason="stop",
            tokens=NO_TOKENS,
            model=SERVICE,
        )
