"""Embeddings, as Gemini and OpenAI serve them."""
