"""Tasks that wait for each other, against ends worked out by hand."""

import numpy as np
import pytest

from neusight.schedule.graph import NOTHING, Graph, Tasks


def diamond() -> Graph:
    """Two tasks after a first one, and a last one after both."""
    tasks = Tasks(("name",))
    first = tasks.add((0,), NOTHING, NOTHING, NOTHING)
    left = tasks.add((1,), first, NOTHING, NOTHING)
    right = tasks.add((2,), first, NOTHING, NOTHING)
    tasks.add((3,), left, right, NOTHING)
    return tasks.graph()


def test_a_task_starts_when_all_that_it_waits_for_have_ended() -> None:
    graph = diamond()
    seconds = np.array([1.0, 2.0, 3.0, 1.0])[graph.labels["name"]]
    assert graph.ends_s(seconds).max() == 1.0 + 3.0 + 1.0
    assert len(graph.levels) == 3


def test_slopes_lie_on_the_longest_way() -> None:
    graph = diamond()
    seconds = np.array([1.0, 2.0, 3.0, 1.0])[graph.labels["name"]]
    slopes = graph.slopes(seconds, graph.ends_s(seconds))
    assert slopes[np.argsort(graph.labels["name"])].tolist() == [1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize(("beside", "end"), [(2.0, 4.0 + 0.25 * 2.0), (50.0, 4.0 / 0.75)])
def test_communication_beside_a_task_takes_its_share(beside: float, end: float) -> None:
    """Of 2 s it takes a quarter; where it never ends, the task runs at three quarters of its rate."""
    tasks = Tasks(("name",))
    sent = tasks.add((0,), NOTHING, NOTHING, NOTHING)
    tasks.add((1,), NOTHING, NOTHING, NOTHING, sent)
    graph = tasks.graph()
    seconds = np.array([beside, 4.0])[graph.labels["name"]]
    assert graph.ends_s(seconds, 0.25)[graph.labels["name"].tolist().index(1)] == pytest.approx(end)
