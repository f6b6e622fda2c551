"""Starting a run, bringing its roles together, watching over them."""
