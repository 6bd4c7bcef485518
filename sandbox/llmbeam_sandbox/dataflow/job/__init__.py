"""One job of the emulated Dataflow, in a separate process: `python -m …sandbox.dataflow.job DIRECTORY`.

The only part of the sandbox that imports Apache Beam.
"""
