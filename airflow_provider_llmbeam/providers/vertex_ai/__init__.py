"""Endpoints of Vertex AI, and its batch inference."""
