"""From measurements to what predictions load: fits, tile models, folds, calibrations. No prediction imports it."""
