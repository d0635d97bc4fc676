"""Sharing of data among one person's devices: their messages, and the work that follows."""
