"""`plevel …` in the process of a test."""

from __future__ import annotations

import pytest

from plevel.cli.main import main


def run_command(*arguments: object) -> int:
    """The exit code of a command with these arguments."""
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code
