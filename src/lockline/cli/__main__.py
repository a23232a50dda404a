"""`python -m lockline.cli` is `lockline`."""

from . import main

main()
