"""Tests that start real TensorFlow processes on this machine."""
