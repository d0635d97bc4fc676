"""The time and the cost of one iteration on simulated devices."""
