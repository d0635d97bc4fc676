"""Where roles meet drivers, disk and sensors."""
