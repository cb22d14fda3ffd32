"""`python -m plevel`: the command line."""

from plevel.cli.main import main

if __name__ == "__main__":
    main()
