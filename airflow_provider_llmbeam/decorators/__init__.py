"""Decorators of TaskFlow."""
