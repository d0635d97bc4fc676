"""The pure machines: they hear events, and answer with effects."""
