"""Tests of the packaged image: `make test-images`, after `make build-images`."""
