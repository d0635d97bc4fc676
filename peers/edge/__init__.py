"""The edge: roles meet drivers, disk and sensors here."""
