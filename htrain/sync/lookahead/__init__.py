"""The look-ahead cache's decisions, without IO: which row stands where, and which prefetched row has changed since it was read (cDLRM 3 to 5)."""
