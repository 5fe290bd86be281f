"""What is said about numbers: intervals, on NumPy alone."""
