"""What users may add from files of their own: rules, cache policies, strategies."""
