"""Bad recipes: one line each, with file, line, key and what to do, before anything is rented."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpurun.errors import UsageError
from gpurun.recipe import Recipe, load

LEAST = """\
name: x
need:
  gpu: H100
budget:
  max_usd_per_hour: 2.50
  max_usd: 3.10
  run_minutes: 30
"""  # a key added after it stands in line 8


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(ref: str, **how: Any) -> str:
    with pytest.raises(UsageError) as caught:
        load(ref, **how)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in message
    return message


def said(text: str | bytes, **how: Any) -> str:
    """What is said of a recipe x.yaml with this text."""
    Path("x.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return refusal("x.yaml", **how)


def changed(old: str, new: str) -> str:
    assert old in LEAST
    return LEAST.replace(old, new)


# The file itself.


def test_a_missing_file_is_named() -> None:
    assert refusal("nope.yaml").startswith("nope.yaml does not exist: ")


def test_a_name_nearly_right_is_told_the_right_one() -> None:
    message = refusal("smok")
    assert message == "smok is neither a file nor a bundled recipe: did you mean smoke?"


@pytest.mark.parametrize("ref", ["", "  ", "a\0b", "a" * 300, "a" * 300 + ".yaml", "x/" * 3000])
def test_a_name_that_no_file_can_have_is_refused(ref: str) -> None:
    refusal(ref)


def test_a_directory_is_not_a_recipe() -> None:
    Path("folder").mkdir()
    assert refusal("folder") == ("folder is a directory: name the recipe's .yaml file in it")


def test_a_name_with_a_line_break_is_still_one_line() -> None:
    assert refusal("a\nb.yaml").startswith("a?b.yaml does not exist: ")
    Path("a\nb.yaml").write_text("")
    assert refusal("a\nb.yaml").startswith("a?b.yaml:1: the recipe is empty: ")


def test_a_pipe_is_not_waited_for() -> None:
    os.mkfifo("pipe.yaml")
    assert refusal("pipe.yaml").startswith("pipe.yaml is not a regular file: ")


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "~\n"])
def test_an_empty_recipe_says_what_belongs_in_it(text: str) -> None:
    assert said(text) == "x.yaml:1: the recipe is empty: give it name, need and budget"


def test_what_is_not_yaml_is_placed() -> None:
    assert said("name: x\nneed: {gpu: H100\nbudget: 1\n").startswith("x.yaml:3: not YAML: ")
    assert said("name: x\n\tneed: 1\n").startswith("x.yaml:2: not YAML: ")


def test_two_documents_are_not_one_recipe() -> None:
    assert said(f"{LEAST}---\n{LEAST}").startswith("x.yaml:8: not YAML: ")


def test_a_list_is_not_a_recipe() -> None:
    assert said("- a\n- b\n") == "x.yaml:1: the recipe is a list: write `key: value` lines"


def test_plain_text_is_not_a_recipe() -> None:
    assert said("train the model\n").startswith("x.yaml:1: the recipe is plain text: ")


def test_binary_data_is_not_a_recipe() -> None:
    assert said(b"name: x\nneed: \x00\x01\n").startswith("x.yaml:2: the recipe holds binary data")


def test_text_that_is_not_utf_8_is_placed() -> None:
    assert said("name: x\n# caf\xe9\n".encode("latin-1")).startswith(
        "x.yaml:2: the recipe is not UTF-8"
    )


def test_a_huge_file_is_not_read() -> None:
    with Path("x.yaml").open("wb") as file:
        file.truncate(2_000_000)
    assert refusal("x.yaml") == "x.yaml has 2,000,000 bytes: a recipe has at most 250,000"


def test_anchors_that_multiply_are_bounded() -> None:
    bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    for i in range(1, 12):
        bomb += f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n"
    assert "too big" in said(bomb)


def test_an_anchor_inside_itself_is_bounded() -> None:
    assert "too big" in said("name: &a [*a]\n")


def test_deep_nesting_is_refused() -> None:
    assert "x.yaml" in said("a: " + "[" * 5000)


def test_tags_are_refused() -> None:
    message = said(changed("name: x", "name: !!python/object:os.system x"))
    assert message.startswith("x.yaml:1: name has the tag ")


# Keys.


def test_an_unknown_key_names_the_nearest() -> None:
    assert said(changed("max_usd:", "max_us:")) == (
        "x.yaml:6: budget.max_us is not a key of a recipe: did you mean budget.max_usd?"
    )
    assert said(LEAST + "trian:\n  run: x\n") == (
        "x.yaml:8: trian is not a key of a recipe: did you mean train?"
    )
    assert said(LEAST + "ship:\n  - form: .\n    to: app\n") == (
        "x.yaml:9: ship[0].form is not a key of a recipe: did you mean ship[0].from?"
    )


def test_an_unknown_key_like_no_other_lists_what_there_is() -> None:
    assert said(LEAST + "train:\n  run: x\n  qqq: 1\n") == (
        "x.yaml:10: train.qqq is not a key of a recipe: train has run, loader, expect"
    )


def test_a_key_given_twice_names_both_lines() -> None:
    assert said(LEAST + "name: y\n") == (
        "x.yaml:8: name is given twice, first in line 1: delete one"
    )
    assert said(changed("  gpu: H100\n", "  gpu: H100\n  gpu: A100\n")).startswith(
        "x.yaml:4: need.gpu is given twice, first in line 3"
    )


def test_a_missing_key_is_named_at_the_mapping_that_lacks_it() -> None:
    assert said(changed("  max_usd: 3.10\n", "")) == "x.yaml:4: budget.max_usd is missing: add it"
    assert said("name: x\n") == "x.yaml:1: need is missing: add it"


def test_a_key_without_a_value_is_named() -> None:
    assert said(changed("3.10", "")).startswith("x.yaml:6: budget.max_usd is empty: ")
    assert said(LEAST + "setup:\n").startswith("x.yaml:8: setup is empty: ")


# Kinds of value.


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "setup:\n  torch: 2.10\n",
            'x.yaml:9: setup.torch is 2.10, a number where text is meant: quote it ("2.10")',
        ),
        (
            "env:\n  THREADS: 1\n",
            'x.yaml:9: env.THREADS is 1, a number where text is meant: quote it ("1")',
        ),
        (
            "env:\n  FLAG: true\n",
            'x.yaml:9: env.FLAG is true, true or false where text is meant: quote it ("true")',
        ),
        (
            "setup:\n  pip:\n    - numpy\n    - 2\n",
            'x.yaml:11: setup.pip[1] is 2, a number where text is meant: quote it ("2")',
        ),
        ("setup: cuda\n", "x.yaml:8: setup is cuda, which is text: write a mapping"),
        ("setup:\n  apt: git\n", "x.yaml:9: setup.apt is git, which is text: write a list"),
        ("collect: {a: b}\n", "x.yaml:8: collect is a mapping: write a list"),
        ("check: [a]\n", "x.yaml:8: check is a list: text is wanted"),
        ("setup:\n  device: tpu\n", "x.yaml:9: setup.device is tpu: give 'cuda' or 'cpu'"),
        ("providers: Vast!\n", "x.yaml:8: providers[0] is 'Vast!': a provider is named"),
        ("secrets: [A B]\n", "x.yaml:8: secrets[0].name is 'A B': a variable is named"),
        ("requires: {recipe: smoke, within_days: 0}\n", "requires.within_days is 0: give 1"),
        ("watch: {pattern: '('}\n", "x.yaml:8: watch.pattern is not a regular expression"),
        ("watch: {stop_when: soon}\n", "x.yaml:8: watch has `stop_when: soon`: write it as"),
        ("max_ship_mb: 0\n", "x.yaml:8: max_ship_mb is 0: give 1 or more"),
        ("collect_to: bucket\n", "has `collect_to: bucket`: give remote:path or user@host:path"),
    ],
)
def test_a_value_of_the_wrong_kind_says_what_is_wanted(lines: str, message: str) -> None:
    assert message in said(LEAST + lines)


def test_yaml_1_2_words_are_not_taken_for_yes_and_no() -> None:
    assert said(changed("gpu: H100", "gpu: H100\n  nvlink: on")) == (
        "x.yaml:4: need.nvlink is on, which is text: write true or false"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("four", "is four, which is text: a whole number is wanted"),
        ("012", "is 012, which is text: a whole number is wanted"),
        ("1.5", "is 1.5: a whole number is wanted"),
        ("0", "is 0: give 1 or more"),
        ("-4", "is -4: give 1 or more"),
    ],
)
def test_a_count_is_a_whole_number_of_at_least_one(value: str, message: str) -> None:
    text = changed("gpu: H100", f"gpu: H100\n  gpu_count: {value}")
    assert said(text) == f"x.yaml:4: need.gpu_count {message}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("-1", "is -1: a budget is more than 0 dollars"),
        ("0", "is 0: a budget is more than 0 dollars"),
        ("0.00", "is 0.00: a budget is more than 0 dollars"),
        (".nan", "is NaN: write a plain number"),
        ("-.inf", "is -Infinity: write a plain number"),
        ("1e400", "is 1E+400: a budget is at most 1000000 dollars"),
        ("$3", "is '$3', which is text: write a plain number"),
        ("3,10", "is '3,10', which is text: write a plain number"),
        ("true", "is true: write a plain number"),
        ("[3]", "is a list: write a plain number"),
    ],
)
def test_a_budget_is_a_positive_plain_number(value: str, message: str) -> None:
    found = said(changed("max_usd: 3.10", f"max_usd: {value}"))
    assert found.startswith(f"x.yaml:6: budget.max_usd {message}")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0", "is 0: a duration is more than 0 minutes"),
        ("-5", "is -5: a duration is more than 0 minutes"),
        ("129601", "is 129601: a duration is at most 129600 minutes (90 days)"),
        (".inf", "is Infinity: write a plain number"),
        ("1:30", "is 1:30, which is text: write plain minutes, such as 90 or 1.5"),
        ("30m", "is 30m, which is text: write plain minutes, such as 90 or 1.5"),
        ("2 hours", "is 2 hours, which is text: write plain minutes"),
    ],
)
def test_a_duration_makes_sense(value: str, message: str) -> None:
    found = said(changed("run_minutes: 30", f"run_minutes: {value}"))
    assert found.startswith(f"x.yaml:7: budget.run_minutes {message}")


def test_a_secret_never_stands_in_the_recipe() -> None:
    message = said(LEAST + "env:\n  WANDB_API_KEY: abcdef\n")
    assert message.startswith("x.yaml:8: env holds WANDB_API_KEY, a secret by its name: ")
    assert "abcdef" not in message


def test_gpurun_s_own_variables_cannot_be_set() -> None:
    assert "env.GPURUN_GPUS is GPURUN_GPUS: names that begin" in said(
        LEAST + "env: {GPURUN_GPUS: a}\n"
    )


def test_no_gpu_and_cuda_contradict_each_other() -> None:
    assert "add `setup.device: cpu`" in said(changed("H100", "none"))


def test_an_empty_training_command_is_refused() -> None:
    assert said(LEAST + "train:\n  run: ''\n").startswith("x.yaml:9: train.run is empty: ")
    assert said(LEAST + "train: {}\n") == "x.yaml:8: train.run is missing: add it"


# Paths and globs on the box.


@pytest.mark.parametrize(
    ("line", "key", "what"),
    [
        ("data: {verify: {files: {a: 0}}}", "data.verify.files.a", "is 0: give 1 or more"),
        ("data: {verify: {files: {a: -2}}}", "data.verify.files.a", "is -2: give 1 or more"),
        ("data: {verify: {files: {/a: 1}}}", "data.verify.files./a", "an absolute path"),
        ("data: {verify: {files: {../a: 1}}}", "data.verify.files.../a", "leaves the run's"),
        ("data: {verify: {files: {'[a': 1}}}", "data.verify.files.[a", "never closed"),
        ("data: {path: ../data}", "data.path", "leaves the run's folder"),
        ("data: {path: 'a*'}", "data.path", "a plain path is wanted"),
        ("collect: [a, /etc]", "collect[1]", "an absolute path"),
        ("collect: [a/../../b]", "collect[0]", "leaves the run's folder"),
        ("collect: [~/a]", "collect[0]", "an absolute path"),
        ("collect: [.]", "collect[0]", "is ., which is everything"),
        ("collect: ['a[']", "collect[0]", "never closed"),
        ("collect: ['a**/b']", "collect[0]", "`**` stands alone"),
        ("collect: [-rf]", "collect[0]", "no leading '-'"),
        ("train: {run: x, expect: ['[']}", "train.expect[0]", "never closed"),
        ("train: {run: x, expect: [/a]}", "train.expect[0]", "an absolute path"),
        ("watch: {metrics: ../m.jsonl}", "watch.metrics", "leaves the run's folder"),
        ("data: {fetch: [{from: 'https://a/b', to: /b}]}", "data.fetch[0].to", "an absolute path"),
        ("data: {fetch: [{from: a, to: b}]}", "data.fetch[0]", "give an https:// address"),
        ("data: {fetch: [{from: 'https://a/b', to: b, sha256: 12ab}]}", "data.fetch[0]", "sha256"),
        ("data: {build: x, fetch: [{from: 'https://a/b', to: b}]}", "data", "has both"),
    ],
)
def test_what_lies_on_the_box_stays_in_the_run_s_folder(line: str, key: str, what: str) -> None:
    message = said(f"{LEAST}{line}\n")
    assert message.startswith(f"x.yaml:8: {key} ")
    assert what in message


# User code.


@pytest.mark.parametrize("home", ["'~'", "{home}", "{home}/", "{home}/..", "/", "link"])
def test_the_home_directory_and_what_is_above_it_never_ship(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "users" / "me"
    mine.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(mine))
    Path("link").symlink_to(mine)
    message = said(f"{LEAST}ship:\n  - from: {home.format(home=mine)}\n    to: app\n")
    assert message.startswith("x.yaml:9: ship[0].from is ")
    assert "the home directory or above it" in message


def test_a_ship_folder_that_is_not_there_is_named() -> None:
    message = said(LEAST + "ship:\n  - {from: code, to: app}\n")
    assert message.startswith("x.yaml:9: ship[0].from is code, no folder (")
    assert "no folder" in said(LEAST + "ship:\n  - {from: x.yaml, to: app}\n")


@pytest.mark.parametrize("to", ["/app", "../app", "remote", "remote/models", "."])
def test_a_ship_destination_stays_beside_gpurun_s_own_code(to: str) -> None:
    assert said(f"{LEAST}ship:\n  - {{from: ., to: {to}}}\n").startswith("x.yaml:9: ship[0]")


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("{to: app}", "needs either `from` (a folder) or `git`"),
        ("{from: ., git: 'https://a/b', to: app}", "needs either `from`"),
        ("{from: ., commit: abc, to: app}", "`commit` without `git`"),
        ("{git: 'https://a/b', to: app}", "the full SHA of 40"),
        ("{git: 'https://a/b', commit: main, to: app}", "the full SHA of 40"),
        (f"{{git: '--upload-pack=x', commit: {'a' * 40}, to: app}}", "not https, ssh"),
        (f"{{git: 'ext::sh -c x', commit: {'a' * 40}, to: app}}", "not https, ssh"),
        (f"{{git: 'https://hunter2@a/b', commit: {'a' * 40}, to: app}}", "holds a key"),
    ],
)
def test_user_code_has_one_source_and_a_pinned_commit(entry: str, what: str) -> None:
    message = said(f"{LEAST}ship:\n  - {entry}\n")
    assert message.startswith("x.yaml:9: ship[0] ")
    assert what in message
    assert "hunter2" not in message


# Parts for one provider.


def test_a_mistake_in_a_provider_s_part_is_found_whichever_is_chosen() -> None:
    text = LEAST + "per_provider:\n  local:\n    budget:\n      max_usd: -1\n"
    message = "x.yaml:11: per_provider.local.budget.max_usd is -1: a budget is more than 0 dollars"
    assert said(text) == said(text, provider="vast") == said(text, provider="local") == message


def test_an_unknown_key_in_a_provider_s_part_names_the_nearest() -> None:
    text = LEAST + "per_provider:\n  local:\n    nedd: {gpu: none}\n"
    assert said(text) == (
        "x.yaml:10: per_provider.local.nedd is not a key of a recipe: did you mean need?"
    )


@pytest.mark.parametrize("key", ["name: y", "providers: [vast]", "per_provider: {}"])
def test_some_keys_cannot_differ_by_provider(key: str) -> None:
    message = said(f"{LEAST}per_provider:\n  local:\n    {key}\n")
    assert message.startswith("x.yaml:10: per_provider.local.")
    assert "cannot differ by provider" in message


def test_a_provider_s_part_is_a_mapping() -> None:
    assert said(LEAST + "per_provider:\n  local:\n").startswith("x.yaml:9: per_provider.local is ")
    assert said(LEAST + "per_provider: [local]\n").startswith("x.yaml:8: per_provider is a list")


def test_a_provider_s_name_is_checked_but_need_not_be_known() -> None:
    assert "a provider is named" in said(LEAST + "per_provider:\n  My Cloud: {}\n")
    Path("x.yaml").write_text(LEAST + "per_provider:\n  my-cloud_2: {}\n")
    load("x.yaml")


# The command line.


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("budget.max_usd=-1", "budget.max_usd is -1: a budget is more than 0 dollars"),
        ("budget.max_us=1", "budget.max_us is not a key: did you mean budget.max_usd?"),
        ("bugdet.max_usd=1", "bugdet is not a key: did you mean budget?"),
        ("budget.max_usd.x=1", "budget.max_usd has no keys in it: set it as a whole"),
        ("budget=5", "budget is 5: write a mapping"),
        ("budget.max_usd=", "budget.max_usd is empty: "),
        ("need.gpu_count=many", "need.gpu_count is many, which is text: a whole number"),
        ("collect=[a", "not YAML: "),
        ("collect=a", "collect is a, which is text: write a list"),
        ("collect=[/a]", "collect[0] is /a, an absolute path"),
        ("train.run=", "train.run is empty: "),
        ("budget.max_usd", "write it as --set key=value"),
        ("=5", "write it as --set key=value"),
        ("budget..max_usd=5", "write it as --set key=value"),
        ("per_provider.local.budget.max_usd=5", "per_provider cannot be set"),
    ],
)
def test_a_bad_override_is_placed_on_the_command_line(override: str, message: str) -> None:
    found = said(LEAST, overrides=[override])
    assert found.startswith(f"--set {override}: {message}")


# Anything at all.


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode())))
def test_no_bytes_bring_the_reader_down(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.yaml"
    path.write_bytes(raw)
    assert refusal(str(path))


VALUES = st.sampled_from(["", "1", "-1", ".nan", "x", "[]", "{}", "[1]", "{a: 1}", "true", "../x"])
INSIDE = [
    "need.gpu",
    "budget.max_usd",
    "setup.apt",
    "setup.torch",
    "data.verify.files",
    "train.run",
]
KEYS = st.sampled_from([*Recipe.model_fields, *INSIDE])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(KEYS, VALUES), max_size=3))
def test_no_override_brings_the_reader_down(pairs: list[tuple[str, str]]) -> None:
    try:
        load("smoke", overrides=[f"{key}={value}" for key, value in pairs])
    except UsageError as error:
        assert "\n" not in str(error)
