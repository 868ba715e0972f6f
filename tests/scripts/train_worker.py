# SPDX-License-Identifier: Apache-2.0
"""Trains as `python -m demo_rfcn` does, and writes the parameters of the detector to a file.

python train_worker.py PARAMETERS.npz ARGUMENT ...
"""

import sys
from typing import Any
from unittest import mock

import numpy as np

from demo_rfcn import cli, networks

built: list = []
build = networks.build


def build_and_keep(*arguments: Any) -> Any:
    built.append(build(*arguments))
    return built[-1]


with mock.patch.object(networks, "build", build_and_keep):
    assert cli.main(sys.argv[2:]) == 0
values = built[0]._collect_params_with_prefix()
np.savez(sys.argv[1], **{name: value.data().asnumpy() for name, value in values.items()})
