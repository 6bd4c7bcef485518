"""Gemini, on the Developer API and on Vertex AI."""
