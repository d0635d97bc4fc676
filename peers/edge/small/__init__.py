"""Keeps a node small on a small computer: memory is given back, and parts are loaded only when needed."""
