"""Look-ahead caches on a trainer (cDLRM 4, 5)."""

from htrain.executor.strategies.lookahead.half import LookAhead

RUN = LookAhead
