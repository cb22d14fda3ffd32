"""Runs, and the tuner that joins search, queue and records."""
