"""Colla: a cloud that teaches devices and learns from them."""
