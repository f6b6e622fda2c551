"""The run half of each way to synchronise and to hold rows: the machines and caches of a role."""
