"""Recommendation by device-cloud collaboration, as users run it: the cloud, a device, and what a device is shown."""
