"""Search for the best hypothetical device: spaces of designs, their area and power, and their speed for workloads.

| module | purpose |
|---|---|
| ``formulas`` | arithmetic of a space's file, over columns of designs |
| ``space`` | a space: axes, laws of area and power, limits -> ``Designs`` in columns, and the device of each |
| ``workloads`` | training steps that designs are judged by, with the plans that may share them |
| ``bounds`` | lower bounds of a step's time under any plan, linear in the times of kernels |
| ``evaluate``, ``search`` | one design for one workload, in any process; the best design, by branch and bound |
| ``front`` | Pareto front of throughput, area and power; its chart |
| ``report`` | the best design of each workload compared with another device |
"""
