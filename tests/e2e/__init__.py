"""Tests on a real Kubernetes: the cluster in KUBECONFIG, or a throw-away cluster. `make e2e` runs them."""
