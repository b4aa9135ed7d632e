"""`python -m gem_ood` is `gem-ood`."""

from gem_ood.cli import main

if __name__ == "__main__":
    main()
