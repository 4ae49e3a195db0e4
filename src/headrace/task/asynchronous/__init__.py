"""Calls of the user's that end later: the rules, the loop they run on, the nodes around them."""
