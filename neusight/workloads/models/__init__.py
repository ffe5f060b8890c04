"""Models beyond those whose steps ship: by name, traced when they are first asked for, then kept in the cache."""
