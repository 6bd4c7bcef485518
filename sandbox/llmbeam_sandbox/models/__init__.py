"""The emulated models: their answers, latency and quotas, behind the Gemini and OpenAI APIs."""
