"""Whole runs in one thread, by one seed: the real machines of launcher, roles and tries over simulated links, disks and clocks (docs/decisions/recovery.md)."""
