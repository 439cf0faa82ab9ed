"""The emulated Prime Intellect."""
