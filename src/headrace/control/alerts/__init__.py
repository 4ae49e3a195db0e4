"""Alerts: rules that are looked at while a job runs, and who is told when one fires."""
