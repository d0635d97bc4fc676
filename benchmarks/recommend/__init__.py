"""DCCL (KDD 2021) made again: its tables and figures, which `python -m benchmarks dccl` runs."""
