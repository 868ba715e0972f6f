"""The detector: backbones, proposals, heads, losses, and the two graphs over them."""
