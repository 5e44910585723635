"""What is learned without a qualification."""
