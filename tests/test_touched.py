from pathlib import Path

from touched import ALWAYS, PAGES, targets

ROOT = Path(__file__).parents[1]


def test_a_module_is_tested_by_itself_its_mirror_and_the_common_tests() -> None:
    assert targets(["src/avare/samplers/rivals/osmd.py"], ROOT) == [
        ALWAYS,
        "src/avare/samplers/rivals/osmd.py",
        "tests/samplers/test_osmd.py",
        "tests/samplers/test_common.py",
    ]


def test_a_module_without_a_mirror_is_tested_by_the_tests_of_its_package() -> None:
    assert targets(["src/avare/torch/norms/layers/rules.py"], ROOT)[1:] == [
        "src/avare/torch/norms/layers/rules.py",
        "tests/torch",
    ]


def test_private_modules_pages_and_tests_have_their_targets() -> None:
    changed = [
        "src/avare/_progress.py",
        "README.md",
        "tests/test_batch.py",
        "docs/torch.md",
        "src/avare/gone.py",
        "LICENSE",
    ]
    assert targets(changed, ROOT) == [
        ALWAYS,
        "src/avare/_progress.py",
        "tests/test_progress.py",
        *PAGES,
        "tests/test_batch.py",
    ]
