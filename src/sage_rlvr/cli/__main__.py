"""The same door by ``python -m sage_rlvr.cli``."""

import sys

from sage_rlvr.cli import main

if __name__ == "__main__":
    sys.exit(main())
