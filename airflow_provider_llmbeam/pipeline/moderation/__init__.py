"""Moderation: a guard model judges prompts before they are sent, and answers before they are published."""
