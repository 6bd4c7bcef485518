"""The services that an endpoint runs on: Vertex AI and Cloud Run, each an `EndpointPlatform` on its hook."""
