"""Ops in C++ on rows of tables. They are compiled where there is a compiler; without them TensorFlow's own do."""
