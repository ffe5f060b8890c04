"""Workload to workload: pure functions that change what a step runs, or say more about its tensors."""
