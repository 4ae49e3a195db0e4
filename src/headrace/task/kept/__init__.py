"""Tables that a task keeps: the last row of each key, and the joins that look it up."""
