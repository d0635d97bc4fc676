"""The search of devices for each other's addresses."""
