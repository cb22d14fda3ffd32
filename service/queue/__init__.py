"""Jobs, leases and workers."""
