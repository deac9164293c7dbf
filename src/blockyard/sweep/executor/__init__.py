"""Who runs the cells of a sweep: local worker processes, Ray, or submitit."""
