"""Tests on a real Kubernetes: the one in KUBECONFIG, or a throw-away one on this machine. `make e2e` runs them."""
