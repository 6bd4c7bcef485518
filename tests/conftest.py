"""Plugins of all tests: no address but loopback, an Airflow home, servers, and a check of all traffic."""

pytest_plugins = ["tests.plugin", "tests.databases", "tests.contract.plugin"]
