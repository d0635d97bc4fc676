"""Who belongs to the mesh, who leads it, and whose majority decides."""
