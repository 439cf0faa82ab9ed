"""The adapters: one module per provider, imported by gpurun/wiring.py alone."""
