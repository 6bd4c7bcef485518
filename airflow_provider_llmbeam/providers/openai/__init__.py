"""OpenAI, and servers with its API."""
