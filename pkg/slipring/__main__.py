"""``python -m slipring``: the command `slipring`; see `slipring._cli.main`."""

import sys

from slipring._cli.main import main

if __name__ == "__main__":
    sys.exit(main())
