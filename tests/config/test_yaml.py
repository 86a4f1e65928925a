"""YAML features that a configuration does not support, and files that are not YAML."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from autoscaler.config import load
from autoscaler.config.model import Config
from autoscaler.ports import ConfigurationError

Refused = Callable[..., list[str]]
Accepted = Callable[..., Config]


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing but a comment\n", "---\n", "---\n...\n", "\ufeff"])
def test_an_empty_file_is_reported_as_such(refused: Refused, text: str) -> None:
    (problem,) = refused(text)
    assert problem.partition(": ")[2].startswith("(file): ")
    assert "empty" in problem or "not nothing" in problem


@pytest.mark.parametrize(
    ("text", "shape"),
    [("- one\n- two\n", "a list"), ("hello\n", "a string"), ("\n42\n", "the number 42"), ("null\n", "nothing")],
)
def test_the_error_for_a_file_that_is_not_a_mapping_names_its_type(refused: Refused, text: str, shape: str) -> None:
    line = 2 if text.startswith("\n") else 1
    assert refused(text) == [f"{line}: (file): expected a mapping (key: value), not {shape}"]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path / "nowhere.yaml", {})
    assert caught.value.problems == (f"{tmp_path}/nowhere.yaml:1: (file): there is no such file",)


def test_a_directory_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="this is a directory"):
        load(tmp_path, {})


def test_a_path_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be read: Not a directory"):
        load(tmp_path / "file" / "autoscaler.yaml", {})


def test_a_path_with_a_null_character() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read: .*null"):
        load(Path("a\0b"), {})


def test_a_file_that_is_far_too_large_is_not_parsed(refused: Refused) -> None:
    start = time.monotonic()
    assert refused(b"#" * 10_000_001) == ["1: (file): larger than 10,000,000 bytes; this cannot be a configuration"]
    assert time.monotonic() - start < 2


def test_a_file_that_is_not_utf_8_names_the_line_and_byte(refused: Refused) -> None:
    assert refused(b"daemon:\n  listen: caf\xe9\n") == ["2: (file): not UTF-8: byte 0xe9; save the file as UTF-8"]


def test_a_control_character_names_its_line(refused: Refused) -> None:
    assert refused("a: 1\nb: \x07\n") == ["2: (file): the character U+0007 is not allowed in YAML"]


def test_tabs_in_the_indentation_are_reported(refused: Refused) -> None:
    (problem,) = refused("clusters:\n  demo:\n\t\tmin: 1\n")
    assert problem.startswith("3: (file): not valid YAML: ")
    assert problem.endswith("; indent with spaces, not with tabs")


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        (
            "clusters:\n  demo:\n    min: 1\n    max:4\n    x: 1\n",
            4,
            "write `key: value`, with a space after the colon",
        ),
        ("clusters:\n  demo:\n    min:1\n    max: 4\n", 4, "or add a space after the colon of a key above"),
        ("clusters:\n  demo: a: b\n", 2, "put a value that has a colon and a space in quotes, or add a space"),
        ("clusters:\n  demo:\n    min: 1\n   max: 4\n", 4, "same indentation: compare this line with the lines above"),
    ],
)
def test_a_missing_space_and_a_wrong_indentation_are_reported_at_their_line(
    refused: Refused, text: str, line: int, hint: str
) -> None:
    (problem,) = refused(text)
    assert problem.startswith(f"{line}: (file): not valid YAML: ")
    assert hint in problem


@pytest.mark.parametrize(
    ("text", "line"),
    [("clusters: [1, 2\n", 2), ("clusters:\n  a: b: c\n", 2), ("a: 'open\n", 2), ("x: }\n", 1), ("%YAML 9\n", 1)],
)
def test_broken_syntax_names_the_line(refused: Refused, text: str, line: int) -> None:
    (problem,) = refused(text)
    assert problem.startswith(f"{line}: (file): not valid YAML: ")


def test_a_second_document_is_refused(refused: Refused) -> None:
    assert refused("a: 1\n---\nb: 2\n") == ["2: (file): a second document begins here; a file must be one document"]


def test_duplicate_keys_name_both_lines_at_every_level(refused: Refused, good: str) -> None:
    text = good + "      calm: {type: stub-policy, within: 5s}\ndaemon: {log: json, log: console}\nclusters: {}\n"
    assert refused(text) == [
        "13: clusters.demo.policies.calm: duplicate key; it is already on line 12",
        "14: daemon.log: duplicate key; it is already on line 14",
        "15: clusters: duplicate key; it is already on line 3",
    ]


def test_an_alias_that_contains_itself_is_refused(refused: Refused) -> None:
    assert refused("clusters: &all\n  demo: *all\n") == ["2: clusters.demo: *all contains itself"]
    assert refused("clusters: &all [*all]\n") == ["1: clusters[0]: *all contains itself"]
    assert refused("clusters: &all\n  <<: *all\n") == ['2: clusters."<<": *all contains itself']


def test_an_alias_without_its_anchor_lists_the_anchors(refused: Refused) -> None:
    assert refused("x-a: &one {}\nclusters: *two\n") == ["2: clusters: *two is not defined above; anchors: &one"]


def test_an_alias_bomb_is_refused_quickly(refused: Refused) -> None:
    lines = ["x-0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"x-{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    start = time.monotonic()
    (problem,) = refused("\n".join(lines))
    assert problem.startswith("5: x-5")
    assert "more than 500,000 values once aliases are written out" in problem
    assert time.monotonic() - start < 2


def test_problems_of_an_alias_bomb_below_the_limit_stay_few(refused: Refused) -> None:
    lines = ["x-0: &a0 {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, h: 1}"]
    keys = "abcdefgh"
    lines += [f"x-{n}: &a{n} {{{', '.join(f'{key}: *a{n - 1}' for key in keys)}}}" for n in range(1, 5)]
    lines.append("clusters: *a4")
    start = time.monotonic()
    assert 0 < len(refused("\n".join(lines))) <= 101
    assert time.monotonic() - start < 5


def test_deep_nesting_is_refused(refused: Refused) -> None:
    for text in ("[" * 50_000, "a: " + "{a: " * 50_000, "- " * 50_000):
        (problem,) = refused(text)
        assert problem.startswith("1: ")
        assert "nested more than 100 levels deep" in problem or "not valid YAML" in problem


def test_merge_keys_supply_missing_keys(accepted: Accepted, good: str) -> None:
    config = accepted(
        good.replace("clusters:\n", "x-common: &common {max: 9, interval: 20s}\nclusters:\n").replace(
            "    min: 1\n", "    <<: *common\n    min: 1\n"
        )
    )
    cluster = config.clusters["demo"]
    assert cluster.spec.limits.maximum == 4  # explicit keys win
    assert cluster.interval.total_seconds() == 15


def test_the_first_of_several_merged_mappings_wins(accepted: Accepted, good: str) -> None:
    merged = good.replace("    max: 4\n", "    <<: [{max: 7}, {max: 9, partitions: 3}]\n")
    cluster = accepted(merged).clusters["demo"]
    assert (cluster.spec.limits.maximum, cluster.spec.partitions) == (7, 3)


def test_an_error_in_a_merged_value_is_reported_at_the_line_of_the_value(refused: Refused, good: str) -> None:
    text = "x-common: &common\n  max: many\n" + good.replace("    max: 4\n", "    <<: *common\n")
    assert refused(text) == ["2: clusters.demo.max: expected a whole number, not a string"]


@pytest.mark.parametrize(("value", "line"), [("3", 7), ("[1]", 7), ("", 7)])
def test_a_merge_key_accepts_only_mappings(refused: Refused, good: str, value: str, line: int) -> None:
    assert refused(good.replace("    max: 4\n", f"    max: 4\n    <<: {value}\n").replace("    min: 1\n", "")) == [
        f"{line}: clusters.demo: `<<` takes a mapping or a list of mappings"
    ]


def test_two_merge_keys_in_one_mapping_are_refused(refused: Refused, good: str) -> None:
    text = good.replace("    max: 4\n", "    max: 4\n    <<: {partitions: 3}\n    <<: {partitions: 4}\n")
    assert refused(text) == ["9: clusters.demo: a second `<<`, after line 8: write `<<: [*one, *other]`"]


@pytest.mark.parametrize(
    ("tag", "shown"),
    [("!!python/object:os.system", "!!python/object:os.system"), ("!mine", "!mine"), ("!!int", "!!int")],
)
def test_tags_are_refused_and_never_run(refused: Refused, good: str, tag: str, shown: str) -> None:
    text = good.replace("max: 4", f"max: {tag} 4")
    assert f"7: clusters.demo.max: the tag {shown} is not allowed; remove it" in refused(text)


def test_an_explicit_string_tag_is_accepted(accepted: Accepted, good: str) -> None:
    config = accepted(good.replace("name: lag}", "name: !!str 42}"))
    assert vars_of(config.clusters["demo"].metrics["lag"].query)["name"] == "42"


@pytest.mark.parametrize("key", ["on", "yes", "no", "1", "1:30", "2020-01-01", "0x1F", "1e3"])
def test_keys_are_kept_as_they_are_written(accepted: Accepted, good: str, key: str) -> None:
    config = accepted(good.replace("name: lag}", f"name: lag, match: {{{key}: x}}}}"))
    assert vars_of(config.clusters["demo"].metrics["lag"].query)["match"] == {key: "x"}


@pytest.mark.parametrize("key", ["? [a]\n", "? {a: b}\n", "'': x\n", "? \n: x\n"])
def test_keys_must_be_strings(refused: Refused, key: str) -> None:
    (problem,) = refused(f"clusters: {{}}\n{key}")
    assert problem == "2: (file): a key must be a string that is not empty"


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("on", "true"),
        ("No", "false"),
        ("1:30", "a number written in an old way (octal, hexadecimal, binary or 1:30)"),
        ("1:30.5", "a number written in an old way (octal, hexadecimal, binary or 1:30)"),
        ("0x1F", "a number written in an old way (octal, hexadecimal, binary or 1:30)"),
        ("2020-01-01", "a date"),
        ("010", "an octal number"),
    ],
)
def test_a_string_that_yaml_takes_for_something_else_needs_quotes(
    refused: Refused, accepted: Accepted, good: str, written: str, read_as: str
) -> None:
    assert refused(good.replace("name: lag", f"name: {written}")) == [
        (
            f"10: clusters.demo.metrics.lag.name: expected a string, not {written}, which YAML reads as {read_as}; "
            f"if it is meant as a string, put it in quotes: '{written}'"
        )
    ]
    quoted = accepted(good.replace("name: lag", f"name: '{written}'"))
    assert vars_of(quoted.clusters["demo"].metrics["lag"].query)["name"] == written


@pytest.mark.parametrize(
    "written", ["1:30", "010", "0x10", "0b11", "4.0", "1e1", "'4'", "yes", "true", "~", "2020-01-01"]
)
def test_a_size_is_a_plain_integer(refused: Refused, good: str, written: str) -> None:
    (problem,) = refused(good.replace("max: 4", f"max: {written}"))
    assert problem.startswith("7: clusters.demo.max: expected a whole number, not ")


def test_an_absurdly_long_number_is_refused(refused: Refused, good: str) -> None:
    (problem,) = refused(good.replace("max: 4", f"max: {'9' * 5000}"))
    assert problem == "7: clusters.demo.max: expected a whole number, not a number of more than 18 digits"


@pytest.mark.parametrize(
    ("written", "value"), [("1e3", 1000.0), ("1_000", 1000.0), ("+.5", 0.5), ("2.", 2.0), ("3", 3.0)]
)
def test_numbers_may_be_written_in_the_usual_forms(accepted: Accepted, good: str, written: str, value: float) -> None:
    config = accepted(good.replace("name: lag}", f"name: lag, factor: {written}}}"))
    assert vars_of(config.clusters["demo"].metrics["lag"].query)["factor"] == value


@pytest.mark.parametrize("written", [".nan", ".inf", "-.inf", "1e999", ".NaN"])
def test_numbers_must_be_finite(refused: Refused, good: str, written: str) -> None:
    (problem,) = refused(good.replace("name: lag}", f"name: lag, factor: {written}}}"))
    assert problem.startswith("10: clusters.demo.metrics.lag.factor: expected a finite number, not ")


@pytest.mark.parametrize(("written", "value"), [("yes", True), ("on", True), ("off", False), ("true", True)])
def test_booleans_may_be_written_in_yamls_forms(accepted: Accepted, good: str, written: str, value: bool) -> None:
    config = accepted(good.replace("type: stub-target", f"type: stub-target, loud: {written}"))
    assert vars_of(config.clusters["demo"].target)["loud"] is value


@pytest.mark.parametrize("written", ["1", "0", "'yes'", "maybe", "~"])
def test_other_values_are_not_booleans(refused: Refused, good: str, written: str) -> None:
    (problem,) = refused(good.replace("type: stub-target", f"type: stub-target, loud: {written}"))
    assert problem.startswith("5: clusters.demo.target.loud: expected true or false, not ")


def test_a_byte_order_mark_is_ignored(accepted: Accepted, good: str) -> None:
    assert accepted("\ufeff" + good).clusters.keys() == {"demo"}


def test_windows_line_ends_keep_the_line_numbers(refused: Refused, good: str) -> None:
    (problem,) = refused(good.replace("max: 4", "max: x").replace("\n", "\r\n"))
    assert problem.startswith("7: clusters.demo.max: ")


def test_the_python_parser_reads_the_same_as_the_c_parser(
    accepted: Accepted, refused: Refused, good: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = good.replace("clusters:\n", "x-a: &a {min: 2}\nclusters:\n").replace("    min: 1\n", "    <<: *a\n")
    bad = text.replace("max: 4", "max: 1:30\n    interval: on")
    with_c = accepted(text), refused(bad)
    monkeypatch.setattr("autoscaler.config.document._LOADER", yaml.SafeLoader)  # the state without libyaml
    assert (accepted(text), refused(bad)) == with_c
    (problem,) = refused("clusters:\n\tdemo: 1\n")
    assert problem.startswith("2: (file): not valid YAML: ")


def vars_of(value: object) -> Mapping[str, object]:
    """The fields of a plug-in of the stub distribution, whose classes cannot be imported here."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}  # type: ignore[attr-defined]
