"""HET-GMP's bounded asynchrony (HET-GMP 5.3): a worker with its secondaries, and the owner of primaries. Decisions alone, no IO."""
