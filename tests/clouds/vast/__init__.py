"""The emulated Vast.ai."""
