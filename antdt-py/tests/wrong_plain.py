"""A script without torch that fails."""

import antdt

antdt.init()
1 / 0  # noqa: B018
