"""Policies: they decide in a live mesh which devices aggregate with each other. They know nothing of the simulator."""
