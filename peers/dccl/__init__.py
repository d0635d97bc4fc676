"""Recommendation by device-cloud collaboration, as users run it: the cloud, a device, and the items it shows."""
