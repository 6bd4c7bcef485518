"""Simulates a job on many machines, without clock and network: `python -m bench.fleet [--plot PNG]`.

file       purpose
case       the rows, machines and requests of a job, and what was measured
governors  machines that share a quota and do not communicate, with the real governor
journal    objects and operations of the journal of one process, with the real journal, and of all of them
totals     what bounds the job, how long it takes and what it costs
tables     the tables of docs/evidence/scale.md
plot       plots the shares of the quota over time
__main__   prints the tables
"""
