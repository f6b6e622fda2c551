"""Threads and sockets that carry out what the machines of roles decide."""
