"""What a process takes of its machine: memory, threads, devices, time."""
