"""Publishing: versions of a model that trains, written by its PSs straight to storage, and read by whoever serves it (HT 4.3, docs/how-to/publish.md)."""
