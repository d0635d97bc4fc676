"""The parts of `benchmarks/chain_scheduler.py`."""
