# SPDX-License-Identifier: Apache-2.0
"""The commands of `python -m demo_rfcn`, one file each; `cli` has the parser."""
