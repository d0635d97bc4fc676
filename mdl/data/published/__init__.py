"""Readers of public sets as their authors give them out, which `mdl data get` does not fetch: MDLdroid's Table 1."""
