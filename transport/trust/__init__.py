"""Membership of a mesh: join codes, the keys made from them, device keys, and signed statements."""
