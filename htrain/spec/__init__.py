"""What a user may say, as frozen values: a section for each question, with bounds, a sentence and a flag on each field."""
