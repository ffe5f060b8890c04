"""The search for the device to build: spaces of designs, their area and power, and what each does for workloads.

| module | what it does |
|---|---|
| ``formulas`` | arithmetic of a space's file, over columns of designs |
| ``space`` | a space: axes, laws of area and power, limits -> ``Designs`` in columns, and the device of each |
| ``workloads`` | training steps that designs are judged by, with the plans that may share them |
| ``bounds`` | what no plan of a step can be faster than, linear in the times of kernels |
| ``evaluate``, ``search`` | one design under one workload, in any process; the best design, by branch and bound |
| ``front`` | designs that no other beats in throughput, area and power; their chart |
| ``report`` | the best design of each workload beside another device |
"""
