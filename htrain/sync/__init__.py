"""Decisions without IO: events in, instructions out. No socket, clock, thread or MPI comes in here (docs/architecture.md)."""
