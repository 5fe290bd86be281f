"""The same door by ``python -m sage_rlvr.cli``."""

import sys

from sage_rlvr import extensions
from sage_rlvr.cli import main

if __name__ == "__main__":
    extensions.leave_working_directory()
    sys.exit(main())
