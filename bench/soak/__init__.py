"""Runs the engine for hours against a sandbox with random faults: `python -m bench.soak [--hours 2]`.

Every minute it prints one line and keeps a sample: rows, bill, and the memory, threads, files and tasks of the
process of the engine. At the end it compares the books of both sides: no row may be lost, no answer may be paid
for twice unless a fault explains it, and nothing may grow. It writes samples and verdict as JSON, and a plot.

file      purpose
weather   the faults: some on every request, others in phases of seconds to minutes
server    the sandbox in a separate process, which counts requests instead of keeping a record of each
load      the rows: batches through the engine with its journal, from several threads, as Beam calls it
verdict   what is checked at the end
plot      samples as an image
"""
