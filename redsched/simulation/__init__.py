"""Deterministic simulation: real schedulers, real scripts on a real server, under a simulated clock and a network that a seed
breaks. One thread runs at a time, so a seed is a whole history that can be replayed.

    python -m redsched.simulation --seed 123 --trace
"""
