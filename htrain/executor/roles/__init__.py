"""What trainers, servers and background loops do."""
