"""Explanations of a chain's order: charts, comparisons, what-if, replays of earlier rounds."""
