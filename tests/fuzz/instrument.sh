#!/bin/sh
# A compiler that counts which branches are taken, for the crates of this workspace only: cargo calls it for them
# (RUSTC_WORKSPACE_WRAPPER), so that dependencies are those of every other build. Works with a stable compiler.
exec "$@" --cfg fuzzing -C passes=sancov-module \
    -C llvm-args=-sanitizer-coverage-level=4 \
    -C llvm-args=-sanitizer-coverage-inline-8bit-counters \
    -C llvm-args=-sanitizer-coverage-pc-table \
    -C llvm-args=-sanitizer-coverage-trace-compares
