# SPDX-License-Identifier: Apache-2.0
"""python -m demo_rfcn COMMAND."""

import contextlib
import io
import os
import sys
import traceback
from importlib.util import find_spec

try:
    # Commands import matplotlib only to draw; GluonCV hides that tqdm is missing.
    for name in ("matplotlib", "tqdm"):
        if not find_spec(name):
            raise ModuleNotFoundError(f"No module named '{name}'")

    from .cli import main
except (ImportError, OSError) as error:  # some imports look for a temporary folder
    install = "pip install '.[demo]' && pip install --no-deps mxnet==1.9.1 gluoncv==0.10.5"
    missing = isinstance(error, ModuleNotFoundError)
    advice = f'; run "{install}" in the source folder of gluon_roi' if missing else ""
    print(f"demo_rfcn: {error}{advice}", file=sys.stderr)
    sys.exit(2)

if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(line_buffering=True)  # a log file or pipe gets each line at once
try:
    status = main()
except SystemExit as stopped:  # of the parser
    status = int(stopped.code or 0)
except BaseException:
    status = 1
    with contextlib.suppress(OSError):
        traceback.print_exc()
with contextlib.suppress(OSError):
    sys.stdout.close()  # or Python, when it ends, would report once more that it is full
if "DMLC_ROLE" in os.environ:
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(status)  # in its end, MXNet would wait for workers that may be gone
sys.exit(status)
