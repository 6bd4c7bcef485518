"""Kills jobs at seeded moments, and judges what they leave: `scripts/bench verdict --seed 1`.

Each case is a job of its own: a runner, a provider, a sink, and the moments of its kills, counted in answers that
the server has billed. Equal seeds give equal cases and an equal verdict. What a job read, paid for and published
is recorded as a history (JSON), which `python -m bench.verdict.checker HISTORY.json …` judges again.

file      purpose
cases     the plan: the cases of a seed
history   what is recorded of a case
checker   what every history has to keep; imports nothing of the package or the sandbox
record    runs a case and kills it
places    where sources, answers and dead letters are, as a stranger reads them
gpu       the cases with an endpoint of their own, whose bill has to end with the run
page      docs/evidence/verdict.md
"""
