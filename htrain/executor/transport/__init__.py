"""Messages between roles: what is said, sockets, collectives."""
