"""Fault plans and machines together: campaigns, searches, stories played again."""
