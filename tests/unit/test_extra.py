"""Checks of what a command needs: each names the remedy."""

from __future__ import annotations

import tempfile

import pytest

from plevel.extra import EmbeddedError, require_both, require_room
from workers.scratch import ScratchError


def test_no_folder_for_temporary_files_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/full"])
    with pytest.raises(ScratchError, match=r"cannot be written \(.*/proc/full.*: free some space, or .* in TMPDIR"):
        require_room()


def test_missing_extras_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EmbeddedError, match=r"pip install 'plevel\[service,worker\]'"):
        require_both()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "fastapi" else True)
    with pytest.raises(EmbeddedError, match="the 'service' extra is not installed"):
        require_both()
