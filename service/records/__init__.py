"""The append-only log of measurements, and the tables derived from it."""
