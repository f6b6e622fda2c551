"""Where everything lives: table shards, then a device for every op of the net (HT 3.2.1)."""
