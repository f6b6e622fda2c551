"""A plan as one self-contained page for a browser (`htrain show --html`)."""
