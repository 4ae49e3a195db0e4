"""A job beside another one over the same data: compared, swapped in, merged."""
