"""One person's devices share data: files, records, and the node that gives or takes."""
