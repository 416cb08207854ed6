"""`python -m covey.cli`."""

import sys

from covey.cli import main

sys.exit(main())
