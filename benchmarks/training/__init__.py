"""Rounds of training without processes and sockets, for figures of accuracy."""
