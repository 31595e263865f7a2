"""Tests of the packaged images: `make test-images`, after `make build-images`."""
