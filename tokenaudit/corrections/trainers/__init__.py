"""One module per trainer: its options, with its own names and defaults, and its formulas."""

from __future__ import annotations

from importlib import import_module

from tokenaudit.corrections.correction import Correction

TRAINERS = {
    "areal": ("areal", "Areal"),
    "miles": ("slime", "Miles"),
    "nemo-rl": ("nemo_rl", "NemoRl"),
    "open-instruct": ("open_instruct", "OpenInstruct"),
    "openrlhf": ("openrlhf", "OpenRlhf"),
    "prime-rl": ("prime", "PrimeRl"),
    "roll": ("roll", "Roll"),
    "skyrl": ("skyrl", "Skyrl"),
    "slime": ("slime", "Slime"),
    "slime-mis": ("slime", "SlimeMis"),
    "tinker": ("tinker", "Tinker"),
    "trl": ("trl", "Trl"),
    "verl": ("verl", "Verl"),
    "xtuner": ("xtuner", "Xtuner"),
}
"""Module and class of the correction of each trainer, by the name of its preset."""

ALIASES = {"nemo": "nemo-rl", "prime": "prime-rl", "openinstruct": "open-instruct"}


def correction_class(trainer: str) -> type[Correction]:
    """The correction of a trainer.

    Raises:
        KeyError: no such trainer.
    """
    module, name = TRAINERS[ALIASES.get(trainer, trainer)]
    return getattr(import_module(f"{__name__}.{module}"), name)
