"""python -m demo_rfcn COMMAND."""

import sys

from .cli import main

sys.exit(main())
