"""Directories on object stores."""
