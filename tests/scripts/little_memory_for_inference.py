# SPDX-License-Identifier: Apache-2.0
"""Calls WinogradConvolution with 8 MB of memory, and prints the message.

Then it calls it with all the memory of the machine, and prints whether the values are right.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import mxnet as mx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from testing.inference_operators import winograd_convolution  # noqa: E402

#: Channels, whose transformed maps take 150 MB.
MANY = 8192


def message(call) -> str:
    try:
        call().wait_to_read()
    except mx.MXNetError as error:
        return str(error).splitlines()[-1]
    return ""


# Each output of a kernel of zeros is the bias.
data, weight = mx.nd.ones((1, MANY, 38, 50)), mx.nd.zeros((36, 1, MANY, 16))
bias, out = mx.nd.ones((16,)), mx.nd.zeros((1, 16, 38, 50))
# Starts all threads, whose stacks count as well; libgomp ends the process if it cannot start one.
small = mx.nd.ones((1, 4, 90, 90)), mx.nd.zeros((36, 1, 4, 16)), bias
winograd_convolution(*small, num_filter=16).wait_to_read()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
_, most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), most))
error = message(lambda: winograd_convolution(data, weight, bias, num_filter=16, out=out))
resource.setrlimit(resource.RLIMIT_AS, (most, most))
winograd_convolution(data, weight, bias, num_filter=16, out=out)
print(json.dumps([error, bool((out.asnumpy() == 1).all())]))
