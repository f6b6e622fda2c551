"""HET: an embedding cache with a clock per row (HET 3). `client` is a worker's side, `server` a sparse PS's; neither does IO."""
