"""One replica's graph: parameters, batches, steps, updates, and how replicas share gradients. Nothing here runs it."""
