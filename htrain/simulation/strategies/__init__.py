"""The played half of each way to hold rows: what its caches ask for, decided as in a run, without a network or dense math."""
