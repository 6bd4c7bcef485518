"""Polling by a task: poll schedule, poller, poll result, failure counter. Pure; `now` is an argument."""
