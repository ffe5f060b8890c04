"""The scheduler once more, value by value and in plain Python: what the compiled one is held against."""

import numpy as np

MOVES = [(0, 0), (1, -1), (1, 0), (1, 1), (1, 3), (2, -2), (2, 0), (2, 2)]
# Written out: the 16 of the paper, and what the same rule makes of other counts.
DECIDING = {
    1: [0],
    4: [0, 1, 2, 3],
    8: [0, 1, 2, 3, 4, 5, 6, 7],
    12: [0, 5, 1, 6, 2, 7, 3, 8, 4, 9, 10, 11],
    16: [0, 5, 10, 1, 6, 11, 2, 7, 12, 3, 8, 13, 4, 9, 14, 15],
    20: [0, 5, 10, 15, 1, 6, 11, 16, 2, 7, 12, 17, 3, 8, 13, 18, 4, 9, 14, 19],
}


def oracle_cycles(mask: np.ndarray, depth: int = 3) -> int:
    _, steps, lanes = mask.shape
    waiting = [{(int(t), int(lane)) for t, lane in np.argwhere(stream)} for stream in mask]
    cycle, now = 0, 0
    while now < steps:
        for values in waiting:
            for lane in DECIDING[lanes]:
                reach = [(now + ahead, (lane + aside) % lanes) for ahead, aside in MOVES if ahead < depth]
                wanted = next((value for value in reach if value in values), None)
                values.discard(wanted)
        cycle += 1
        now += min(empty_rows(values, now, depth) for values in waiting)
    return cycle


def empty_rows(values: set[tuple[int, int]], now: int, depth: int) -> int:
    oldest = min((step for step, _ in values), default=now + depth)
    return min(oldest - now, depth)
