"""What trainers, servers and background rounds do next: machines, events in, instructions out, without threads, sockets or clocks."""
