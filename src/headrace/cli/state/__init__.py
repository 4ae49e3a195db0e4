"""``headrace state``: what the stores of a job hold, and what keeping it costs."""
