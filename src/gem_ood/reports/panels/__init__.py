"""Panels: the numbers behind each figure of a report, computed once, drawn in print by `plots`, on screen by `page`."""
