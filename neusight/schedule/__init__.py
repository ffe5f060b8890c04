"""Programs and costs to time: what runs when, on which stream. One stream of one device is the special case."""
