"""How devices find each other's addresses."""
