"""Builds and times configurations in children that can be killed. No SQL; TVM only in children."""
