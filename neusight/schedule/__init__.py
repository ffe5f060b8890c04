"""Programs and costs to time: what runs when, on which stream."""
