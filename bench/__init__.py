"""Our engine beside stock Beam and the peers: the same jobs, the same server, one run.

    scripts/bench                        ours and stock Beam, three repeats
    scripts/bench --peers                with every peer that installs from the registry
    scripts/bench --quick --jobs A,B     one small repeat of two jobs

file            purpose
jobs            what is run: rows, server, what the client is told, what must be reached
rows            the rows themselves
server, steps   the sandbox in a process of its own, and a capacity that steps
contenders/     one file per contender, each run by an interpreter of its own
lineup          who takes part, in the order of the table
venvs           the peers' interpreters, below `.bench/`
run             one contender on one job: start, kill, wait, measure
measure         figures from the server's log of requests
summary         spread over the repeats, ratios to ours, targets reached or missed
table, plot     the same results for the terminal and as a picture
machine         where the figures come from: processor, versions, commit
simulation      the governor alone against a simulated server, an hour in seconds

Programs of their own: `real_server` asks a server that is not ours, and `waiting_sensors` measures what sensors
that wait cost a triggerer, with `exhausted_cloud` and `dags/`.
"""
