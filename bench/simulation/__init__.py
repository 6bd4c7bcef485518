"""Simulates the governor with servers, without clock and network; an hour takes seconds.

file         purpose
simulator    clients and a server as a simulation of discrete events
servers      servers with a quota of one shape each
cases        cases drawn at random, and their bounds
token_cases  the same with prompts of any length, and quotas of tokens
bounds       tables of all of these, with the bounds that the governor keeps
hours        an hour with several machines that do not communicate
traces       the admitted rate over time
plot         plots it
__main__     runs the cases and prints the distribution; also the bounds, the hours and the plot
"""
