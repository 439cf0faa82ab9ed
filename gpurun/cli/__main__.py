"""`python -m gpurun.cli`: the same as `gpurun`."""

from gpurun.cli import main

if __name__ == "__main__":
    main()
