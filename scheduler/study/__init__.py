"""Policies played and judged on simulated iterations."""
