#!/bin/sh
# A compiler that counts which branches are taken. Cargo calls it for the crates of this workspace only
# (RUSTC_WORKSPACE_WRAPPER), so dependencies are built as in every other build. Works with a stable compiler.
exec "$@" --cfg fuzzing -C passes=sancov-module \
    -C llvm-args=-sanitizer-coverage-level=4 \
    -C llvm-args=-sanitizer-coverage-inline-8bit-counters \
    -C llvm-args=-sanitizer-coverage-pc-table \
    -C llvm-args=-sanitizer-coverage-trace-compares
