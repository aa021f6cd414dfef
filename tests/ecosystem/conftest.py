"""Models are built in code: nothing is asked of a network. Read when the libraries are imported."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
