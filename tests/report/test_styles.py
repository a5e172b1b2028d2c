"""One look a sampler."""

from avare import samplers
from avare.report import styles


def test_every_registered_sampler_has_its_own_look() -> None:
    names = {*samplers.names(), "Calibrated", "UpperBound"}
    found = styles.assign(names)
    assert set(styles._FIXED) >= names
    assert len({(style.colour, style.dash) for style in found.values()}) == len(names)
    assert len({style.marker for style in found.values()}) == len(names)


def test_a_look_does_not_depend_on_what_else_is_shown() -> None:
    assert styles.assign(["Vrb"])["Vrb"] == styles.assign(samplers.names())["Vrb"]


def test_unknown_names_get_the_next_free_look() -> None:
    names = [f"new{number:02}" for number in range(12)]
    found = styles.assign([*names, "Avare"])
    taken = {(style.colour, style.dash) for style in styles._FIXED.values()}
    looks = [(found[name].colour, found[name].dash) for name in names]
    assert len(set(looks)) == 12 and not taken & set(looks)
    assert styles.assign(names[:3])["new02"] == found["new02"]
    assert len(styles.assign([f"new{number:03}" for number in range(100)])) == 100


def test_all_looks_can_be_drawn_in_both() -> None:
    for style in styles.assign([*styles._FIXED, *(f"new{number}" for number in range(40))]).values():
        assert style.dash in styles.MATPLOTLIB_DASHES and style.marker in styles.PLOTLY_MARKERS
