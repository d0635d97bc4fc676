"""The cloud, and the devices that learn from it."""
