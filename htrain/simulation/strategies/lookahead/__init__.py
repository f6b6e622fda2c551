"""What look-ahead caches ask for, and what they do beside steps in a simulation (cDLRM 4, 5)."""

from htrain.simulation.strategies.lookahead.plays import PlaysLookAhead
from htrain.simulation.strategies.lookahead.windows import RunsWindows

__all__ = ["BESIDE", "PLAYS", "PlaysLookAhead", "RunsWindows"]

PLAYS, BESIDE = PlaysLookAhead, RunsWindows
