"""What decides in a live mesh who aggregates with whom; knows nothing of the simulator."""
