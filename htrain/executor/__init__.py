"""Runs a plan: roles, their transport, the engine, checkpoints. It never sees the user's model code (docs/architecture.md)."""
