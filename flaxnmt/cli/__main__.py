"""`python -m flaxnmt.cli`."""

import sys

from flaxnmt.cli import main

sys.exit(main())
