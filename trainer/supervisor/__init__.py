"""How the supervisor sees a run: what a pod's status means, and when a run has succeeded or failed."""
