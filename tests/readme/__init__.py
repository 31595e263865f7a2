"""A test of README's first commands."""
