"""Programs and costs to time: what runs when, on which stream. One stream of one device is the special case."""

from neusight.schedule.events import Events, events_of
from neusight.schedule.pipeline import Pipeline
from neusight.schedule.run import Run, simulate, step_s
from neusight.schedule.timeline import Timeline, Wait, one_stream
from neusight.schedule.times import StepTimes
from neusight.schedule.trace import timeline_trace, trace_of

__all__ = [
    "Events",
    "Pipeline",
    "Run",
    "StepTimes",
    "Timeline",
    "Wait",
    "events_of",
    "one_stream",
    "simulate",
    "step_s",
    "timeline_trace",
    "trace_of",
]
