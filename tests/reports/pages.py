"""A report made up of every kind of name, and a page taken apart."""

from html.parser import HTMLParser

HOSTILE = "<script>alert(1)</script>"
NAMES = [HOSTILE, "Ünïcödé 数字", 'a & b "q"', "</script>", "<img src=x onerror=alert(1)>", "10", "2", ""]
METRICS = ("fpr", "auroc", "aupr_in")
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def made_report(detectors=tuple(NAMES), sets=tuple(NAMES[:4]), *, calibrated=True):
    """Return a report in which every name of a user is hostile and every number is another one."""
    numbers = iter(range(1, 10_000))

    def share():
        return next(numbers) / 7919

    measured = {}
    for detector in detectors:
        evaluations = {ood: {metric: share() for metric in METRICS} | {"intervals": None} for ood in sets}
        mean = {m: sum(e[m] for e in evaluations.values()) / len(evaluations) if sets else None for m in METRICS}
        measured[detector] = {
            "id_error": share(),
            "id_kept": share() if calibrated else None,
            "flagged": {ood: share() for ood in sets} if calibrated else None,
            "evaluations": evaluations,
            "mean": mean,
            "mean_intervals": None,
            "seconds_per_10k": share(),
        }
    best = {m: {o: [min(measured, key=lambda d: measured[d]["evaluations"][o][m])] for o in sets} for m in METRICS}
    return {
        "title": f"title {HOSTILE}",
        "headline": f"headline {HOSTILE}",
        "findings": [f"finding {HOSTILE}"],
        "caveats": [f"caveat {HOSTILE}"],
        "tpr": 0.95,
        "convention": "paper",
        "n_id": 360,
        "sets": [{"name": ood, "n_rows": 500} for ood in sets],
        "lead": detectors[0],
        "comparison": {"intervals": None, "confidence": 0.95, "detectors": measured},
        "best": best,
        "detectors": {detector: made_detector(sets, calibrated) for detector in detectors},
        "images": {HOSTILE: PIXEL, "far": "https://example.org/tracker.png"},
        "diagnosis": {
            "detector": HOSTILE,
            "trust": HOSTILE,
            "sentences": [HOSTILE],
            "degrees_of_freedom": 27,
            "has_labels": True,
            "curves": [{"name": HOSTILE, "expected": [1.0, 2.0], "found": [1.5, 2.5]}],
            "band": {"expected": [1.0], "low": [0.5], "high": [1.5]},
        },
        "map": {
            "method": HOSTILE,
            "note": HOSTILE,
            "n_drawn": 2,
            "n_rows": 2,
            "x": [0.0, 1.0],
            "y": [0.0, 1.0],
            "set": [0, 0],
            "row": [0, 1],
            "class": [0, None],
            "classes": [HOSTILE],
            "class_from": HOSTILE,
            "is_ood": {detector: [0, 1] if calibrated else None for detector in detectors},
        },
        "run": {
            "command": f"gem-ood evaluate '{HOSTILE}' && echo \"$HOME\"",
            "date": "2026-11-16 12:40 UTC",
            "versions": {HOSTILE: HOSTILE},
            "inputs": [{"name": HOSTILE, "source": HOSTILE, "n_rows": 360}],
        },
    }


def made_detector(sets, calibrated):
    surprise = {"row": 3, "label": HOSTILE, "nearest_class": HOSTILE, "distance": 10.5, "score": -54.9}
    surprise |= {"p_value": 0.002, "is_ood": True if calibrated else None}
    guarantee = {"value": -2.5, "tpr": 0.95, "method": HOSTILE, "n_rows": 360, "guarantee": f"guarantee {HOSTILE}"}
    return {
        "description": HOSTILE,
        "threshold": guarantee if calibrated else None,
        "histogram": {"edges": [-3.0, 0.0], "id": [1.0], "ood": {ood: [1.0] for ood in sets}, "beyond": {}},
        "curves": {ood: {"fpr": [0.0], "tpr": [1.0], "recall": [1.0], "precision": [1.0]} for ood in sets},
        "kept": {"asked": [0.95], "realised": [0.94], "low": [0.9], "high": [0.99]} if calibrated else None,
        "surprises": [
            surprise | {"set": None, "image": HOSTILE},
            *(surprise | {"set": ood, "image": "far"} for ood in sets),
        ],
    }


class Page(HTMLParser):
    """What a browser would make of a page: its elements, their attributes, and the text of each."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.open = [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "attributes": dict(attrs), "text": "", "inside": [one["tag"] for one in self.open]}
        self.elements.append(element)
        if tag not in {"meta", "link", "img", "input", "br"}:
            self.open.append(element)

    def handle_endtag(self, tag):
        while self.open and self.open.pop()["tag"] != tag:
            pass

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag, **attributes):
        wanted = {key.replace("_", "-"): value for key, value in attributes.items()}
        return [
            one
            for one in self.elements
            if one["tag"] == tag and all(one["attributes"].get(key) == value for key, value in wanted.items())
        ]

    def one(self, tag, **attributes):
        (found,) = self.all(tag, **attributes)
        return found
