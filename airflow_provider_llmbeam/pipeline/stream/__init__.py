"""The resident worker of a queue: answers its messages, each paid once, without a graph."""
