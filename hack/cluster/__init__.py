"""A throw-away Kubernetes on this machine, for end-to-end tests where no other cluster is available.

The tool builds Kubernetes from the pinned Go modules in `modules/` and runs it in a sandbox: separate process, mount
and network namespaces (`sandbox.py`). Changes to processes, mounts, interfaces, firewall rules and system folders stay
in the sandbox, and disappear with it. The command is `python -m hack.cluster`.
"""
