"""A discrete-event model of a plan on a cluster that is not here (HT 5)."""
