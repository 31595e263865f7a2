"""`trainer serve`: one model behind KServe's model server; `make package-model` makes its image."""
