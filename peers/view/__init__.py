"""What people see: the live view, watched meshes, inference."""
