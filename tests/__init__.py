"""Tests on real things: see CONTRIBUTING.md."""
