"""MDLdroid's evaluation: a mesh beside a master with slaves, and what one device can do alone."""
