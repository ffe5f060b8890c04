"""What a rank runs and keeps when it trains a decoder: units of a model, forward and backward."""
