"""The members of the mesh, its leader, and the majority that decides."""
