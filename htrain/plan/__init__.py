"""A plan: a folder of nets that a person can read, what it must satisfy, and its text."""
