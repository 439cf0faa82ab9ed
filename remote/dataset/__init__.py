"""ARC puzzles as token sequences: built, verified, cut into batches."""
