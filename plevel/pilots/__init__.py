"""Pilot jobs: workers that a batch system starts as the backlog asks for them."""
