#!/bin/sh
# The compiler as `cargo xtask sanitize` lets cargo start it, for our crates alone: with AddressSanitizer, which a stable
# compiler offers only to who asks as its own build does. In cargo's own environment the variable would have what others
# wrote built again, since some of their build scripts look for it.
RUSTC_BOOTSTRAP=1 exec "$@" -Zsanitizer=address
