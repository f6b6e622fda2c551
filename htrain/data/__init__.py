"""Readers: a data file in, batches of named arrays out."""
