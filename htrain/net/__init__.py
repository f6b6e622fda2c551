"""Nets: blobs, ops, parameters, and what the compiler decides about them, as frozen values."""
