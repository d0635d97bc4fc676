"""Recordings of phones, for the benchmarks that fit or play them."""
