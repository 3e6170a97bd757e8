"""`python -m semisight` is the same as `semisight`."""

from semisight.app.cli import main

if __name__ == "__main__":
    main()
