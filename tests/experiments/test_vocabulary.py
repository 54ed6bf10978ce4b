"""Settings of configs: what is accepted, and what an error says."""

import pytest

from hfmds.errors import ConfigurationError
from hfmds.experiments.vocabulary import KEYS, Settings, layered, section, settings_from


def test_keys_may_be_nested_or_dotted() -> None:
    nested = settings_from({"training": {"alpha": 0.5}, "split": {"devices": 3}}, "here")
    dotted = settings_from({"training.alpha": 0.5, "split.devices": 3}, "here")
    assert nested == dotted == {"training.alpha": 0.5, "split.devices": 3}


def test_every_setting_of_every_method_is_a_key() -> None:
    assert KEYS["hfmds.mu"] == (float,)
    assert KEYS["fedgan.gan_rounds"] == (int,)
    assert KEYS["split.samples_per_device"] == (int, type(None))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"training.learnin_rate": 1}, "no setting training.learnin_rate; did you mean training.l"),
        ({"classes_per_device": 2}, "did you mean split.classes_per_device?"),
        ({"training": {"alpha": 0.5}, "training.alpha": 0.1}, "training.alpha is set twice"),
        ({"rounds": True}, "rounds is True; it must be a whole number"),
        ({"rounds": 2.5}, "rounds is 2.5; it must be a whole number"),
        ({"rounds": None}, "rounds is None; it must be a whole number"),
        ({"test_images": "all"}, "test_images is 'all'; it must be a whole number or null"),
        ({"hfmds.mu": "much"}, "hfmds.mu is 'much'; it must be a number"),
        ({"hfmds.mu": ".nan"}, "hfmds.mu is '.nan'; it must be a number"),
        ({"method": 5}, "method is 5; it must be text"),
        ({5: 5}, "5 is no name of a setting"),
        ([1], "must be settings, such as rounds: 10"),
    ],
)
def test_an_error_says_where_and_what(document: object, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        settings_from(document, "x.yaml: settings")
    assert str(raised.value).startswith("x.yaml: settings")
    assert message in str(raised.value)


def test_numbers_take_whole_numbers_and_what_yaml_takes_for_text() -> None:
    # YAML 1.1 reads 5e-4 as text: there is no dot in it.
    settings = settings_from({"hfmds.mu": 2, "training.weight_decay": "5e-4"}, "here")
    assert settings == {"hfmds.mu": 2.0, "training.weight_decay": 0.0005}
    assert isinstance(settings["hfmds.mu"], float)


def test_null_is_kept_where_it_means_something() -> None:
    assert settings_from({"test_images": None}, "here") == {"test_images": None}


def test_a_section_is_what_comes_after_its_dot() -> None:
    settings = settings_from({"split.devices": 3, "training.alpha": 0.5}, "here")
    assert section(settings, "split") == {"devices": 3}


def test_relative_numbers_change_what_is_below_them() -> None:
    base: Settings = {"training.learning_rate": 0.005, "rounds": 4}
    slow = settings_from({"training.learning_rate": "0.1x"}, "here")
    assert layered("here", base, slow) == {"training.learning_rate": 0.0005, "rounds": 4}
    assert layered("here", base, {"training.learning_rate": 0.7}, slow) == {
        "training.learning_rate": 0.07,  # 0.1 * 0.7 is 0.06999999999999999
        "rounds": 4,
    }


def test_relative_numbers_are_of_something() -> None:
    slow = settings_from({"training.learning_rate": "0.1x"}, "here")
    with pytest.raises(ConfigurationError, match=r"here: training\.learning_rate is 0\.1x, but n"):
        layered("here", slow)


def test_whole_numbers_are_not_relative() -> None:
    with pytest.raises(ConfigurationError, match="rounds is '2x'; it must be a whole number"):
        settings_from({"rounds": "2x"}, "here")


def test_a_number_may_be_relative_to_another_setting() -> None:
    before = settings_from({"hfmds.first_round": 15, "training.learning_rate": 0.005}, "here")
    later = {
        "training.later_from_round": "1x hfmds.first_round",
        "training.later_learning_rate": "0.1x training.learning_rate",
    }
    merged = layered("here", before, settings_from(later, "here"))
    assert merged["training.later_from_round"] == 15
    assert isinstance(merged["training.later_from_round"], int)
    assert merged["training.later_learning_rate"] == 0.0005


def test_what_a_number_cannot_be_relative_to_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no setting hfmds.first_roud.*first_round"):
        settings_from({"rounds": "2x hfmds.first_roud"}, "here")
    with pytest.raises(ConfigurationError, match=r"nothing says of what: set hfmds\.first_round"):
        layered("here", settings_from({"rounds": "2x hfmds.first_round"}, "here"))
    odd = settings_from({"rounds": "0.5x hfmds.first_round"}, "here")
    with pytest.raises(ConfigurationError, match=r"7\.5; it must be a whole number"):
        layered("here", {"hfmds.first_round": 15}, odd)
