"""How good a checkpoint is on the held-out split, and its export."""
