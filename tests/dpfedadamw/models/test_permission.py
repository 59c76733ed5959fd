"""Which modules a name covers, and what cannot be named."""

from __future__ import annotations

import pytest

from dpfedadamw import spec
from dpfedadamw.errors import ModelError, SpecError
from dpfedadamw.models.own.permission import (
    OPTION,
    CodeNotAllowedError,
    allowing,
    permission,
    require,
)

KEY = "model.target"


@pytest.mark.parametrize(
    ("module", "covered"),
    [
        ("nets", True),
        ("nets.deep.er", True),
        ("nets_of_others", False),
        ("net", False),
        ("package.models", True),
        ("package.models.resnet", True),
        ("package", False),
        ("package.other", False),
    ],
)
def test_a_name_covers_a_module_and_what_lies_below_it(module, covered):
    with allowing(["nets", "package.models"]):
        assert permission().covers(module) == covered
        if covered:
            require(f"{module}:Net", KEY)
        else:
            with pytest.raises(CodeNotAllowedError, match=rf'give allow_code=\["{module}"\]$'):
                require(f"{module}:Net", KEY)


def test_nothing_is_allowed_where_nobody_says_so_and_no_longer_than_it_lasts():
    for _ in range(2):
        with pytest.raises(CodeNotAllowedError):
            require("nets:Net", KEY)
        with allowing(["nets"]):
            require("nets:Net", KEY)
            with allowing([]), pytest.raises(CodeNotAllowedError):
                require("nets:Net", KEY)


def test_the_user_s_list_is_read_only_where_the_names_do_not_cover_and_once():
    asked = []

    def listed():
        asked.append(1)
        return ["listed"]

    with allowing(["nets"], listed):
        require("nets:Net", KEY)
        assert (asked, permission().handed_on()) == ([], ("nets",))
        for _ in range(2):
            require("listed.models:Net", KEY)
        assert (asked, permission().handed_on()) == ([1], ("nets", "listed"))


@pytest.mark.parametrize("name", ["", ".", "nets:Net", "../nets", "nets.", "a-b", "nets\n", 3])
def test_what_is_no_dotted_name_is_refused(name):
    with pytest.raises(ModelError, match=r"^allow_code: .* is not a module name"), allowing([name]):
        pass


@pytest.mark.parametrize("name", ["os", "os.path", "subprocess", "builtins", "importlib.util"])
def test_python_s_own_library_cannot_be_named_and_is_never_run(name):
    with (
        pytest.raises(ModelError, match=r"^--allow-code: .*Python's own library"),
        allowing([name], given_as=OPTION),
    ):
        pass
    with allowing([], lambda: [name]), pytest.raises(ModelError, match="Python's own library"):
        require(f"{name}:system", KEY)


@pytest.mark.parametrize("place", ["os:system", "os.path:join", "subprocess:run", "json:loads"])
@pytest.mark.parametrize("key", ["target", "loss"])
def test_a_spec_that_names_python_s_own_library_is_refused_before_any_code_is_looked_for(
    place: str, key: str
) -> None:
    named = {"name": "python", "target": "nets:Net", key: place}
    model = "{" + ", ".join(f"{name}: '{value}'" for name, value in named.items()) + "}"
    with pytest.raises(SpecError, match=rf"model\.{key}: {place} is of Python's own library"):
        spec.load("quickstart", [f"model={model}"])


def test_one_name_may_be_given_as_text():
    with allowing("nets"):
        require("nets:Net", KEY)
