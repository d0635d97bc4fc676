"""One module a source of data, found by the name in front of a spec."""
