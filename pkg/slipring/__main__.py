"""``python -m slipring``: the command `slipring`; see `slipring.cli.main`."""

import sys

from slipring.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
