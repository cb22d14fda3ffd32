"""The limit of waits in tests: it ends a hang, and is no promise of how fast anything is."""

from __future__ import annotations

HANG_S = 300.0
