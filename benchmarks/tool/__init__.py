"""The tool itself: the registry, the command line, and what all benchmarks print and write."""
