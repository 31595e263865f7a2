"""What a run has learnt: `trainer report` shows it; `trainer models` compares models, and publishes them to MLflow."""
