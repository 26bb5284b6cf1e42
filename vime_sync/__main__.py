"""`python -m vime_sync` is the same command line as `vime-sync`."""

from vime_sync.cli import main

if __name__ == "__main__":
    main()
