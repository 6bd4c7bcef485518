"""The Beam pipeline around the engine. Never imports Airflow."""
