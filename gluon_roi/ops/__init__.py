# SPDX-License-Identifier: Apache-2.0
"""The operators, a file each: its function and its block."""
