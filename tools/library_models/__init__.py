"""Models of public libraries, each with the inputs that a user would give it (`tools/library_models.py`)."""
