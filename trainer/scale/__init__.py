"""How many parameter servers a run needs, from costs that were measured on one machine."""
