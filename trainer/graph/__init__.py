"""Builds the graph of one replica: parameters, batches, steps, updates and replication. Does not run it."""
