"""Parts of `python -m benchmarks chaos`: a watcher of the mesh, and the picture."""
