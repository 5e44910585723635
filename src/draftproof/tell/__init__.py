"""What people and programs read: reports, packages, rules of an alert."""
