"""Measurements that users can repeat: what ``headrace bench`` runs."""
