"""The program of one task: it builds the graph, runs it, saves, evaluates and ends."""
