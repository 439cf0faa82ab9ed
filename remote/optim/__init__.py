"""Optimisers: one for the weights, one for the puzzle table."""
