"""Colla: what a cloud teaches, and what it learns from the devices."""
