"""`python -m llama_octet` is the `octet` command."""

import sys

from .cli import main

sys.exit(main())
