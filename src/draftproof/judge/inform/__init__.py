"""What explains a verdict and cannot change it."""
