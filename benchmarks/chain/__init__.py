"""The parts of `python -m benchmarks chain_scheduler`."""
