"""The asyncio engine that answers a batch of prompts: plan, pace, send, record. Knows neither Beam nor Airflow."""
