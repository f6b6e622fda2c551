"""What users register, and the files that do."""
