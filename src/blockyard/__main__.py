"""`python -m blockyard` is `blockyard`."""

import os
import sys

# `-m` puts the working folder first on the path: only packages that `allow` names are imported from there.
if "blockyard.cli" not in sys.modules and not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from blockyard.cli import entry

if __name__ == "__main__":
    entry()
