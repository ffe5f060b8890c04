"""Measure the machine at hand: kernels and whole models, into a data set that everything else reads.

The order of a collection: ``sampling`` and ``catalogue_shapes`` propose kernels, ``plan`` puts them in order,
``session`` hands them to ``workers``, each of which prepares a kernel's operator (``launches``), times it (``bench``)
and returns a row, which ``store`` keeps. ``drafting`` writes the device file, ``model_plan`` and ``model_tasks`` do
whole models, ``collectives`` several devices together.
"""
