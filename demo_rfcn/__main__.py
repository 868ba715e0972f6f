"""python -m demo_rfcn COMMAND."""

import contextlib
import sys

try:
    from .cli import main
except OSError as error:  # what it imports may look for a temporary folder
    print(f"demo_rfcn: {error}", file=sys.stderr)
    sys.exit(2)

status = main()
with contextlib.suppress(OSError):
    sys.stdout.close()  # or Python, when it ends, would report once more that it is full
sys.exit(status)
