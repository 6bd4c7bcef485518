"""How a batch of prompts is answered: plan, pace, send, record. asyncio; no Beam, no Airflow."""
