"""`python -m plevel`, and the script `plevel`: the command line."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. An interrupt while it is loaded ends it as a later one does."""
    try:
        from plevel.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
