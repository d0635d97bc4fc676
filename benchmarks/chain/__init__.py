"""The parts of `benchmarks/scheduler.py`."""
