"""Decisions without IO: events in, instructions out. No socket, clock, thread or MPI (DESIGN 5)."""
