"""The test boxes themselves: what the other tests stand on."""

import time

import pytest

from tests.boxes import Shape, box

pytestmark = pytest.mark.box


def test_a_box_answers_over_ssh_in_under_a_second() -> None:
    began_s = time.monotonic()
    with box() as made:
        assert time.monotonic() - began_s < 1
        assert made.ssh("id -un; hostname").stdout == f"root\n{made.claim.name}\n"


def test_a_vm_user_has_sudo_without_a_password() -> None:
    with box(Shape(user="ubuntu")) as made:
        assert made.ssh("id -un; sudo -n id -un").stdout == "ubuntu\nroot\n"
