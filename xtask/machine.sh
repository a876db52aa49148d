#!/bin/sh
# What must be on the machine before cargo can build anything: cargo itself and a C compiler (the linker, AWS-LC and
# jemalloc need it). Runs before xtask, which needs both. Silent when all is well.
set -eu

if ! command -v cargo >/dev/null 2>&1; then
    echo "cargo is missing. Install Rust from https://rustup.rs; rust-toolchain.toml then selects the version." >&2
    exit 1
fi

if command -v cc >/dev/null 2>&1; then
    exit 0
fi

if ! command -v apt-get >/dev/null 2>&1; then
    echo "A C compiler is missing: install gcc or clang, so that \`cc\` is found." >&2
    exit 1
elif [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    echo "A C compiler is missing: sudo apt-get install -y build-essential" >&2
    exit 1
fi

echo "no C compiler: installing build-essential"
# The package lists of a fresh machine may be empty or old.
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y build-essential </dev/null ||
    { $as_root apt-get update </dev/null &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y build-essential </dev/null; }
