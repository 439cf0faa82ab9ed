"""How fast training and evaluating are, beside upstream's code in the same run."""
