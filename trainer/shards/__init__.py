"""The parameters of a run in the graph: vectors on parameter servers, tables, and what replicas share beside them."""
