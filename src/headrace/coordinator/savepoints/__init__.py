"""Named copies of one committed epoch, that new jobs begin from."""
