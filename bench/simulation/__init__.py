"""Simulates the governor with servers, without clock and network; an hour takes seconds.

file       purpose
simulator  clients and a server as a simulation of discrete events
servers    servers with a quota of one shape each
cases      cases drawn at random, and their bounds
__main__   runs the cases and prints the distribution
"""
