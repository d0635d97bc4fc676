"""Connections: the peers that a node has links to, the clients that may connect, and the bounds on both."""
