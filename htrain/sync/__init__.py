"""Decisions without IO: events in, instructions out. No socket, clock, thread or MPI comes in here (DESIGN 5)."""
