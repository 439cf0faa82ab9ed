"""Trains a model: python -m remote.pretrain arch=trm key=value ...  (or under torchrun)

`--check` says what the configuration amounts to and trains nothing.  SIGTERM saves a checkpoint and
ends with 0; SIGUSR1 prints where every thread is.
"""

import sys

from remote import signals
from remote.process import end_with


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    signals.show_stacks_when_asked()
    sigterm = signals.Sigterm()
    if "--check" in words:
        from remote.launch import launch

        return launch([word for word in words if word != "--check"], sigterm, only_check=True)
    with sigterm.watched():
        from remote.launch import launch  # torch: seconds

        return launch(words, sigterm, only_check=False)


if __name__ == "__main__":
    end_with(main)
