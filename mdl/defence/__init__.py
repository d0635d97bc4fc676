"""The check of other devices' work before it is merged (MDLdroid 5: a poisoning check at each device)."""
