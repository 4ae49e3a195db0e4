"""How each kind of operator changes columns, key and event time, and what is wrong with it."""
