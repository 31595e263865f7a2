"""Checkpoints: how they are taken, written, read and listed."""
