"""A training device: its part in a round, its model, its own work."""
