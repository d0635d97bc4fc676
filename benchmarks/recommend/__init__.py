"""DCCL (KDD 2021) made again: its tables and figures, which `benchmarks/dccl.py` runs."""
