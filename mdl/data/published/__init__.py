"""Readers of public sets in their authors' form, which `mdl data get` does not fetch: MDLdroid's Table 1."""
