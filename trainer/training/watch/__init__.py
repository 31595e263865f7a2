"""What watches over the tasks of a run."""
