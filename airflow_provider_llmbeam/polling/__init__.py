"""How a task waits: poll schedule, poller, poll result, failure counter. Pure; `now` is an argument."""
