"""What a run leaves on disk: its files, who writes them, and reading them back."""
