"""Compares our engine with stock Beam and other libraries (the peers): same jobs, same server, one run.

    scripts/bench                        our engine and stock Beam, three repeats
    scripts/bench --peers                also every peer that can be installed from the package registry
    scripts/bench --quick --jobs A,B     one small repeat of two jobs

file            purpose
jobs            the jobs: rows, server, limits known to the client, targets
rows            creates the rows
server, steps   the sandbox in a separate process, and a quota that changes in steps
contenders/     one file per contender, each run by its own interpreter
registry        the contenders, in the order of the table
venvs           the virtual environments of the peers, below `.bench/`
run             runs one contender on one job: start, kill, wait, measure
measure         figures computed from the server's request log
summary         spread over the repeats, ratios to our engine, targets reached or missed
table, plot     the results as text for the terminal and as an image
machine         environment of the measurements: processor, versions, commit
simulation      the governor alone with a simulated server; simulates an hour within seconds

Separate programs: `soak` runs the engine for hours against random faults, `gpu` measures a real model server and
the memory and time of static batches, `waiting_sensors` the cost of waiting sensors for a triggerer (with
`exhausted_cloud` and `dags/`), and `import_cost` the import of operators.
"""
