"""Benchmarks, one tool: `python -m benchmarks` lists them."""
