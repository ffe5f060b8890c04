"""Programs and costs to time: what runs when, on which stream. One stream of one device is the special case."""

from neusight.schedule.timeline import Timeline, Wait, one_stream

__all__ = ["Timeline", "Wait", "one_stream"]
