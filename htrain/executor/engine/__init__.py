"""A device's net as a program of stages, its parameters, and the gates of their writes."""
