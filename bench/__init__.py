"""Compares our engine with stock Beam and the peers: the same jobs, the same server, one run.

    scripts/bench                        ours and stock Beam, three repeats
    scripts/bench --peers                with every peer that installs from the registry
    scripts/bench --quick --jobs A,B     one small repeat of two jobs

file            purpose
jobs            the jobs: rows, server, settings known to the client, targets
rows            the rows themselves
server, steps   the sandbox in a separate process, and a quota that changes in steps
contenders/     one file per contender, each run by its own interpreter
lineup          the contenders, in the order of the table
venvs           the peers' interpreters, below `.bench/`
run             runs one contender on one job: start, kill, wait, measure
measure         figures from the server's log of requests
summary         spread over the repeats, ratios to ours, targets reached or missed
table, plot     the same results for the terminal and as a picture
machine         environment of the figures: processor, versions, commit
simulation      the governor alone against a simulated server, an hour in seconds

Separate programs: `real_server` measures a server that is not ours, and `waiting_sensors` measures the cost of
waiting sensors for a triggerer, with `exhausted_cloud` and `dags/`.
"""
