"""The process and its machine: signals, worker processes, memory, clock."""
