"""What members of a mesh state about devices: who is in, who owns the mesh, who is locked out."""
