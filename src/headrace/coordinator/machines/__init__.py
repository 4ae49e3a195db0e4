"""What a driver does next, as state machines: events in, actions out; no file and no clock."""
