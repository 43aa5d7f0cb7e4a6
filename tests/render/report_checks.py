"""What validators of SARIF and JUnit look for beyond the schemas that are kept here.

Those of SARIF are the schema of 2.1.0 and the rules of Microsoft's multitool for SARIF and for GitHub, but for these:
SARIF2005 and 2012 want a home page, 2003 a repository, 2009 short ids where a rule of a gate is its own id, and 2010
and 2011 the text of lines that tables don't have. Those of JUnit are the schema of Ant's reports.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET


def assert_validators_note_nothing(log: dict[str, Any]) -> None:
    """What the rules of SARIF's multitool find."""
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert re.fullmatch(r"([A-Z][a-z0-9]+)+", rule["name"]), "SARIF2012"
        assert rule["name"].lower() != rule["id"].lower(), "SARIF1001"
        for text in ("shortDescription", "fullDescription", "help"):
            assert rule[text]["text"].endswith((".", "!", "?")), "SARIF2001"
    notes = [note for call in run["invocations"] for name in call if name.startswith("tool") for note in call[name]]
    for said in (*run["results"], *notes):
        assert said["message"]["text"].endswith((".", "!", "?")), "SARIF2001"
    used: set[str] = set()
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"], "SARIF1009"
        template = rules[result["ruleIndex"]]["messageStrings"][result["message"]["id"]]["text"]
        assert re.findall(r"'\{(\d)\}'|\{", template) == [str(n) for n in range(len(result["message"]["arguments"]))], (
            "SARIF2002, SARIF2015"
        )
        (location,) = result["locations"]
        assert location["logicalLocations"][0]["fullyQualifiedName"]
        place = location["physicalLocation"]
        region = place["region"]
        assert region["startLine"] >= 1, "SARIF1007, GH1003"
        if "snippet" in region:
            around = place["contextRegion"]
            lines = around["snippet"]["text"].split("\n")
            assert len(lines) == around["endLine"] - around["startLine"] + 1 > 1, "SARIF1008"
            assert lines[region["startLine"] - around["startLine"]] == region["snippet"]["text"], "SARIF2010"
        artifact = place["artifactLocation"]
        assert re.fullmatch(r"(?!/)([\w.~/-]|%[0-9A-F]{2})+", artifact["uri"], re.ASCII), "SARIF1002, SARIF2016"
        assert ".." not in artifact["uri"].split("/"), "SARIF1002"
        used.add(artifact["uriBaseId"])
    assert used <= run["originalUriBaseIds"].keys(), "SARIF1004"
    assert all(base.get("uri", "/").endswith("/") for base in run["originalUriBaseIds"].values()), "SARIF1004"


def assert_ant_would_write_it(root: ET.Element) -> None:
    """The order, the elements and the attributes of Ant's schema, which has fewer than that of Jenkins."""
    assert (root.tag, root.attrib) == ("testsuites", {})
    (suite,) = root
    assert suite.attrib.keys() == {
        *("errors", "failures", "hostname", "id", "name", "package", "skipped", "tests", "time", "timestamp"),
    }  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    assert float(suite.attrib["time"]) == 0
    first, *cases, out, err = suite
    assert [first.tag, out.tag, err.tag] == ["properties", "system-out", "system-err"]
    for case in cases:
        assert (case.tag, case.attrib.keys()) == ("testcase", {"name", "classname", "time"})
        assert len(case) <= 1
        for outcome in case:
            assert outcome.attrib.keys() == {"message"} | ({"type"} if outcome.tag in ("failure", "error") else set())
