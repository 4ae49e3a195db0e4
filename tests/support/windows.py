"""Windows as models read them: their sizes in ms, and how they are updated."""

from headrace.graph.windows import GlobalWindow, Hopping, Session, Sliding, Tumbling, Window

__all__ = ["GlobalWindow", "Hopping", "Session", "Sliding", "Tumbling", "Window"]
