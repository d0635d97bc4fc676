"""Messages in datagrams: what carries a link where TCP waits longer than the way takes."""
