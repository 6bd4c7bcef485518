"""Simulates the monitoring of batch-inference jobs, without clock and network.

file       purpose
cases      cases drawn at random, what they cost, and what an oracle that knows the turnaround would pay
__main__   runs the cases and prints a table
"""
