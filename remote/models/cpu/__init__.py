"""What a CPU computes in C++ of our own: attention, and the MLP where nothing is learnt."""
