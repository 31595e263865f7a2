"""`trainer launch`: a whole cluster on this machine."""
