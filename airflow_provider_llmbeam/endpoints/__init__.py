"""Serving resources: provision, monitor, tear down and sweep them, on Vertex AI and Cloud Run."""
