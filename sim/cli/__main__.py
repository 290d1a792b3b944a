"""`python -m sim.cli` is `gca`."""

from sim.cli import main

if __name__ == "__main__":
    main()
