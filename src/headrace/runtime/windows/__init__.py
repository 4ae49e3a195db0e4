"""Windows and totals: what each kind keeps of its messages, and when it sends results."""
