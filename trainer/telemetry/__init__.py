"""What a task reports: progress, metrics, summaries, profiles."""
