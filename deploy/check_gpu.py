#!/usr/bin/env python3
"""Says whether a build for GPUs can compute here, before it is made.

Usage: check_gpu.py
Exits 0 if the driver knows CUDA 13 and shows a GPU of sm_80 or later; else 2, after one line with
what is missing and the cure. Standard library only.
"""
import ctypes
import sys

CUDA = 13000  # The version that driver and build must share in its thousands.
MAJOR, MINOR = 75, 76  # cuDeviceGetAttribute: of the compute capability.


def missing():
    """What is missing, with its cure; None: nothing."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver: install one that knows CUDA 13 (580 or later)"
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if version.value < CUDA:
        return (f"the NVIDIA driver knows CUDA {version.value // 1000}.{version.value % 1000 // 10}, "
                "and CUDA 13 is needed: install a driver 580 or later")
    error = cuda.cuInit(0)
    if error == 0:
        error = cuda.cuDeviceGetCount(ctypes.byref(count))
    if error != 0 or count.value == 0:
        return (f"the NVIDIA driver shows no GPU (error {error}): see nvidia-smi and "
                "CUDA_VISIBLE_DEVICES")
    major, minor = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, 0)
    if major.value < 8:
        return (f"GPU 0 is sm_{major.value}{minor.value}, and sm_80 is needed: name another in "
                "CUDA_VISIBLE_DEVICES")
    return None


def main():
    problem = missing()
    if problem is None:
        return 0
    print(f"no GPU to compute on: {problem}; or leave --device cuda out", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
