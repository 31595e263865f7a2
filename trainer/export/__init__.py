"""Exported models: their files, and loading them."""
