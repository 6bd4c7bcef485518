"""The asyncio engine that answers a batch of prompts: plan, pace, send, record. Imports no Beam, no Airflow."""
