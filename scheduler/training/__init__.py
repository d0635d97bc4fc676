"""Environments, networks and labels for learning a policy."""
