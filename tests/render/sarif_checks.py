"""What validators of SARIF look for beyond its schema."""

from __future__ import annotations

import re
from typing import Any


def assert_validators_note_nothing(log: dict[str, Any]) -> None:
    """What common validators of SARIF note beyond its schema, as far as it can be known without a home page."""
    (run,) = log["runs"]
    for rule in run["tool"]["driver"]["rules"]:
        assert re.fullmatch(r"([A-Z][a-z0-9]*)+", rule["name"])
        assert rule["name"] != rule["id"]
        for text in ("shortDescription", "fullDescription", "help"):
            assert rule[text]["text"].endswith((".", "!", "?"))
    notes = [note for call in run["invocations"] for name in call if name.startswith("tool") for note in call[name]]
    for said in (*run["results"], *notes):
        assert said["message"]["text"].endswith((".", "!", "?"))
    for result in run["results"]:
        artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
        assert ("uriBaseId" in artifact) is not artifact["uri"].startswith("/")
        assert {artifact.get("uriBaseId", "%SRCROOT%")} == run["originalUriBaseIds"].keys()
        assert (run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"]) == result["ruleId"]
