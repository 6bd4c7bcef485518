"""Batch inference of Vertex AI, the Gemini Developer API and OpenAI, which the emulated models answer."""
