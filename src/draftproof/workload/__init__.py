"""Items, readers, segments, block order and checks of answers. Pure and seeded."""
