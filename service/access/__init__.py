"""Authentication, tokens and the audit log."""
