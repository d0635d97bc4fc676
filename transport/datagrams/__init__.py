"""Messages in datagrams: they replace a link where TCP waits longer than the way takes."""
