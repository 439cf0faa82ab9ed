"""gpurun: rent GPUs by the hour without losing a dollar to a forgotten or stuck box."""

__version__ = "0.1.0"
