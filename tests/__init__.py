"""Every test of the project; `make help` says which command runs which folder."""
