"""The figures that README quotes, one command each."""
