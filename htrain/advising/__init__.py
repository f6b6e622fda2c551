"""What size of cache a user's own data wants: hit rates by stack distances and miniature caches, bytes, and the knee
(docs/how-to/choose-a-cache.md)."""
