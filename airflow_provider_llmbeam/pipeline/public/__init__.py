"""What `airflow_provider_llmbeam.beam` exports to authors of Beam pipelines."""
