"""`python -m semisight` is the same as `semisight`."""

from semisight.cli.main import main

if __name__ == "__main__":
    main()
