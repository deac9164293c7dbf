"""The process and its machine: when it started, its peak memory, its random generators."""
