# SPDX-License-Identifier: Apache-2.0
"""The detector: backbones, proposals, heads, losses, and the two graphs over them."""
