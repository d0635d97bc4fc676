"""Faults of a simulated mesh and their times: drawn from a seed, saved, made shorter."""
