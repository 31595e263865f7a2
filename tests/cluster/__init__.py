"""A throw-away Kubernetes on this machine, for end-to-end tests where no other cluster is to be had.

Real components, built from the pinned Go modules in `modules/`, run in a box: their own process, mount and network
namespaces (`box.py`). What they do to processes, mounts, interfaces, firewall rules and system folders they do to the
box, so ending the box undoes it, and nothing outside can be hit by mistake. `python -m tests.cluster` is the tool.
"""
