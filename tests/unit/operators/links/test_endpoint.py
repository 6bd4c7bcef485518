from __future__ import annotations

from airflow_provider_llmbeam.operators.links import endpoint_url


def test_the_link_shows_the_endpoint_in_the_console():
    model = {"type": "vertex_endpoint", "endpoint": "projects/p/locations/us-central1/endpoints/llmbeam-k"}
    assert endpoint_url(model) == (
        "https://console.cloud.google.com/vertex-ai/online-prediction/locations/us-central1/endpoints/llmbeam-k"
        "?project=p"
    )


def test_the_link_shows_the_service_in_the_list_of_cloud_run():
    address = "https://llmbeam-a-0123456789ab-abcdefghij-uc.a.run.app"
    assert endpoint_url({"type": "openai", "id_token_audience": address}) == (
        "https://console.cloud.google.com/run?filter=llmbeam-a-0123456789ab"
    )
    assert endpoint_url({"type": "openai", "id_token_audience": None}) is None
