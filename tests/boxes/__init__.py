"""Boxes: real machines with sshd, to be rented, broken and destroyed by tests."""

from tests.boxes.box import Box as Box
from tests.boxes.box import box as box
from tests.boxes.claims import sweep as sweep
from tests.boxes.shape import Shape as Shape
