"""Views for people: the live view, watched meshes, inference, the report of a run."""
