"""Net -> Net passes, one a file: lookups, loss, gradient, optimizer, shard lookups, split by node, init and sync nets."""
