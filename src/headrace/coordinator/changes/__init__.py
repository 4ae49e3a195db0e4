"""What is done to a job beside its epochs: rescaled, set back, redriven, removed."""
