"""Code generation for CPUs: masking, passes, elementary functions, and common parts of schedules."""
