"""How a task waits: poll schedule, poller, poll result, counter of consecutive failures. Pure; `now` is an argument."""
