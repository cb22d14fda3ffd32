"""Ask and tell: which configuration to try next. No SQL, no HTTP."""
