"""Measure the machine at hand: kernels and whole models, into a data set that everything else reads.

The order of a collection, each importing only what stands before it:

| module | what it does |
|---|---|
| ``launches`` | from a kernel to the operator that runs it, on random operands |
| ``instruments``, ``bench`` | stopwatches and the device's state; time a launch with them |
| ``tasks``, ``steps``, ``names`` | what is measured: a kernel, a step of a model, which kernels ran |
| ``sampling``, ``plan``, ``models`` | which kernels and models, in what order |
| ``drafting`` | the device file of the machine at hand |
| ``workers`` | what a process does that measures, one a device, on this host or on a cluster's |
| ``store``, ``session`` | the journal of rows; one collection, from a request to a data set with its card |
| ``collectives``, ``kernels`` | several devices together; kernels, their names and collectives in one set |
| ``sparsity`` | zeros of a network's operands in real training steps |
"""
