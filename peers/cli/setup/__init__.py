"""Commands that bring a device into a mesh, and keep it there."""
