"""Connections: to whom there is one, who may open one, and how many."""
