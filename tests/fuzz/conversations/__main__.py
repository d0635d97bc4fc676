"""`python -m tests.fuzz.conversations`: see run.py."""

import sys

from tests.fuzz.conversations.run import main

if __name__ == "__main__":
    sys.exit(main())
