"""The columns of a table: what each one is, and the arrays that a model gets."""
