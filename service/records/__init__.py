"""The append-only log of measurements, and what is derived from it."""
