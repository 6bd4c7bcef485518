"""All tests have the plugin `tests.plugin`: a guard of the network, an Airflow home, a sandbox, a real PostgreSQL."""

pytest_plugins = ["tests.plugin", "tests.contract.plugin"]
