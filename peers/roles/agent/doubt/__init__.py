"""The agent's response to deltas that a device has refused."""
