"""Conversations: the rows of one key, asked in order, each with its history; and the history between runs."""
