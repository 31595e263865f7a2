"""What a run has learnt: `trainer report` shows a run, `trainer models compare` compares two models."""
