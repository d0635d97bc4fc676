"""Run `python -m tests.arm`: see run.py."""

import sys

from tests.arm.run import main

if __name__ == "__main__":
    sys.exit(main())
