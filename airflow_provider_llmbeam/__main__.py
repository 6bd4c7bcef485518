"""`python -m airflow_provider_llmbeam` is the command `llmbeam`."""

from airflow_provider_llmbeam.cli import llmbeam

if __name__ == "__main__":
    llmbeam(prog_name="llmbeam")
