"""Training on many devices: units of a model priced, put on stages by a plan, and scheduled."""
