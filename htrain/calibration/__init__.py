"""Rates of the hosts that a plan runs on: measured on one, or corrected by a run."""
