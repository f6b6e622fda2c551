"""A run beside its plan: what it did over time, what it measured against what was predicted, and why these differ where that can be told."""
