"""From a captured model to a plan: the pipeline and its searches."""
