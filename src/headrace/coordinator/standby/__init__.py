"""Hot standby: copies of tasks' stores on other hosts, and who takes over from whom."""
