"""The program of one task: it builds the graph, takes training steps, saves checkpoints and evaluates them."""
