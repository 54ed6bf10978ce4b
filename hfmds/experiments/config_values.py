"""What stands behind the keys of a config: checked, and as the values an `Experiment` has.

`where` says in errors which file, size and key it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hfmds.errors import ConfigurationError
from hfmds.experiments.experiment import MEASURES, PaperNumber, Sweep, Tsne
from hfmds.experiments.vocabulary import KEYS, Settings, nearest, settings_from

_PAPER_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?")


def require_known(document: Mapping[Any, Any], known: set[str], where: str) -> None:
    """Refuse keys that are not known."""
    for key in document:
        if key not in known:
            raise ConfigurationError(
                f"{where} has an unknown key {key}; {nearest(str(key), sorted(known))}"
            )


def named(value: object, where: str) -> dict[str, Settings]:
    """Settings by name."""
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} must be names with their settings")
    return {str(name): settings_from(own, f"{where}: {name}") for name, own in value.items()}


def chosen(value: object, where: str, known: Mapping[str, Settings]) -> dict[str, Settings]:
    """A list of names, and of new names with their settings."""
    if not isinstance(value, list) or not value:
        raise ConfigurationError(f"{where} is {value!r}; it must be a list of names")
    found: dict[str, Settings] = {}
    for item in value:
        for name, settings in _one_or_known(item, where, known).items():
            if name in found:
                raise ConfigurationError(f"{where}: {name} is there twice; remove one of them")
            found[name] = settings
    return found


def _one_or_known(item: object, where: str, known: Mapping[str, Settings]) -> dict[str, Settings]:
    match item:
        case str() if item in known:
            return {item: known[item]}
        case str():
            raise ConfigurationError(
                f"{where}: {item!r} is not known; {nearest(item, known)} Or write {item}: with "
                "its settings"
            )
        case dict() if len(item) == 1:
            return named(item, where)
    raise ConfigurationError(f"{where}: {item!r} is neither a name nor one name with its settings")


def sweep(value: object, where: str) -> Sweep:
    """The setting that is varied."""
    if not isinstance(value, dict) or not {"setting", "values"} <= value.keys():
        raise ConfigurationError(f"{where} must have a setting and values")
    require_known(value, {"setting", "label", "values"}, where)
    setting, values = value["setting"], value["values"]
    if not isinstance(setting, str) or setting not in KEYS:
        raise ConfigurationError(
            f"{where}: there is no setting {setting}; {nearest(str(setting), KEYS)}"
        )
    if not isinstance(values, list) or not values:
        raise ConfigurationError(f"{where}: values is {values!r}; it must be a list of values")
    checked = tuple(settings_from({setting: one}, where)[setting] for one in values)
    return Sweep(setting, str(value.get("label", setting)), checked)


def tsne(value: object, where: str) -> Tsne:
    """What the t-SNE figure shows."""
    if not isinstance(value, dict) or value.keys() != {"panels", "mu", "classes"}:
        raise ConfigurationError(f"{where} must have panels, mu and classes")
    if not isinstance(value["mu"], list):
        raise ConfigurationError(f"{where}: mu is {value['mu']!r}; it must be a list of numbers")
    found = [settings_from({"hfmds.mu": one}, where)["hfmds.mu"] for one in value["mu"]]
    mu = tuple(one for one in found if isinstance(one, float))
    if len(mu) < len(found):  # 2x: of what?
        raise ConfigurationError(f"{where}: mu is {value['mu']!r}; none of them may be relative")
    return Tsne(texts(value["panels"], where), mu, count(value["classes"], where))


def count(value: object, where: str) -> int:
    """A whole number from 1 on."""
    if type(value) is not int or value < 1:
        raise ConfigurationError(f"{where} is {value!r}; it must be at least 1")
    return value


def whole_numbers(value: object, where: str) -> tuple[int, ...]:
    """Different whole numbers from 0 on."""
    if not isinstance(value, list) or not value:
        raise ConfigurationError(f"{where} is {value!r}; it must be a list of whole numbers")
    if not all(type(number) is int and number >= 0 for number in value):
        raise ConfigurationError(f"{where} is {value!r}; it must be whole numbers from 0 on")
    if len(set(value)) < len(value):
        raise ConfigurationError(f"{where} is {value!r}; each may be there once")
    return tuple(value)


def texts(value: object, where: str) -> tuple[str, ...]:
    """A list of names."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigurationError(f"{where} is {value!r}; it must be a list of names")
    return tuple(value)


def paper_numbers(value: object, where: str) -> dict[str, dict[str, dict[str, PaperNumber]]]:
    """By measure, arm and split; the split is "" where a number is for all."""
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} must be measures, such as accuracy, with numbers")
    require_known(value, set(MEASURES), where)
    return {measure: _of_arms(arms, f"{where}: {measure}") for measure, arms in value.items()}


def _of_arms(value: object, where: str) -> dict[str, dict[str, PaperNumber]]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} is {value!r}; it must be arms with their numbers")
    return {
        str(arm): {
            str(split): _paper_number(number, f"{where}: {arm}")
            for split, number in (cells.items() if isinstance(cells, dict) else [("", cells)])
        }
        for arm, cells in value.items()
    }


def _paper_number(value: object, where: str) -> PaperNumber:
    match = _PAPER_NUMBER.fullmatch(str(value))
    if not match:
        raise ConfigurationError(f"{where}: {value!r} must be a number, or like 28.53 ± 6.74")
    mean, deviation = match.groups()
    return PaperNumber(float(mean), None if deviation is None else float(deviation))
