"""The frame of a JUnit XML report: one suite of test cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from xml.etree import ElementTree as ET


def junit_text(name: str, title: str, counts: Mapping[str, int], skipped: int, cases: Iterable[ET.Element]) -> str:
    """The XML, with a line feed at the end.

    Args:
        name: what the suites are called.
        title: what the one suite is called.
        counts: tests, failures and errors.
        skipped: test cases that are skipped; the suites as a whole don't tell them.
        cases: the test cases; their texts hold no character that XML can't hold.
    """
    told = {key: str(count) for key, count in counts.items()}
    root = ET.Element("testsuites", {"name": name} | told)
    suite = ET.SubElement(root, "testsuite", {"name": title} | told | {"skipped": str(skipped)})
    suite.extend(cases)
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"
