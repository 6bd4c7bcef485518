"""Measures servers with models of random weights, on a GPU or on the CPU: `python -m bench.gpu --help`.

The tests do not run it: it requires an environment with `transformers[serving]` and `torch`, which this package
never installs.
"""
