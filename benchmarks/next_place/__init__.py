"""Parts of `python -m benchmarks colla`: records of places, the methods compared, the figures."""
