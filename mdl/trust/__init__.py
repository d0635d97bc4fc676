"""Statements of a mesh's members about devices: membership, ownership, and lock-outs."""
