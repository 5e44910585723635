"""Where model folders come from: the demo's model made once from a package, a local folder, a hub id."""
