"""`trainer data`: raw files as versions of a Lance dataset, their tags, statistics and differences."""
