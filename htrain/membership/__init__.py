"""What passes between the servers of a plan's tables and workers from outside: descriptions, messages, sockets (docs/reference/client-protocol.md)."""
