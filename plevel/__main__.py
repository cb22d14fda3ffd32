"""`python -m plevel`, and the script `plevel`: the command line."""

from __future__ import annotations

import sys

from plevel.cli.exit_code import interrupted

TYPE_CHECKING = False  # typing is loaded below, where an interrupt has no traceback
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. An interrupt while it is loaded ends it as a later one does."""
    # httpx loads a command line of its own where it can: rich and pygments, half of the time that httpx takes.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    try:
        from plevel.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(interrupted(sys.argv[1:]))
    finally:
        # An interrupt in code that is made of text, as a dataclass's methods, has `python -m` end by SIGINT, whatever
        # the exit code is, until other such code has run.
        eval("0")  # noqa: S307


if __name__ == "__main__":
    main()
