"""The supervisor program: it runs one training run inside Kubernetes, and decides when the run succeeded or failed."""
