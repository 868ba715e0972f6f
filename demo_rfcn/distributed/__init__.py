# SPDX-License-Identifier: Apache-2.0
"""Several processes on one run: `workers.join`, and the programs that start and serve them."""
