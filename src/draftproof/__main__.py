"""`python -m draftproof`: the command line without an installed script."""

import sys

from draftproof.cli import main

if __name__ == "__main__":
    sys.exit(main())
