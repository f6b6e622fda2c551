"""Compile checks itself: loss and gradients of a captured net against the model that it was captured from, on a small random batch."""
