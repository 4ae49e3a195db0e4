"""The hosts of a job: who is there, what each one has, and which task goes where in an epoch."""
