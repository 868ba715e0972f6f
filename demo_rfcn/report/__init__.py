# SPDX-License-Identifier: Apache-2.0
"""Pictures and the report of a run."""
