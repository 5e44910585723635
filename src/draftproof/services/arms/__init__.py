"""Arms: the services under test, started, stopped, described, and checked before anything is measured."""
