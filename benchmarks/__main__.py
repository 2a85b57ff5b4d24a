"""Runs the benchmarks with BLAS on one thread, for floor and subject alike."""

import os

# Before NumPy is imported, which reads them once; child processes inherit them.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from benchmarks.command import main  # noqa: E402

if __name__ == "__main__":
    raise SystemExit(main())
