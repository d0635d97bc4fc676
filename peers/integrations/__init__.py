"""Callbacks that let loops of other trainers take part in a mesh. Each imports its trainer; nothing imports them."""
