"""Environments, networks and labels from which a policy learns."""
