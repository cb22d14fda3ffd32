"""Code for processors: masking, passes, elementary functions, and what schedules share."""
