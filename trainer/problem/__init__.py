"""What a run trains on what: the model, the data and the settings together."""
