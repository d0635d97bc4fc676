"""Whether what another device gives may be merged (MDLdroid 5: a poisoning check at each device)."""
