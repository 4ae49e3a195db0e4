"""A run of a job from start to end, whatever runs its slots."""
