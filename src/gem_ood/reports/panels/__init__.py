"""Panels: the numbers behind each figure of a report, computed once, drawn on paper by `plots` and on screen by `page`."""
