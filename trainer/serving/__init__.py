"""`trainer serve`: one packaged model behind KServe's model server; `make package-model` makes its image."""
