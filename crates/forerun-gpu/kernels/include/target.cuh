// What the sources are compiled for: a GPU (by nvcc or NVRTC), or the host, where a shim runs each
// lane as a fiber (-DFORERUN_SHIM; see shim/). Kernels are written in the words of this folder and
// need no other difference.
//
//   FORERUN_DEVICE            a function of the device
//   FORERUN_KERNEL(threads)   an entry point, for blocks of at most so many threads
//   FORERUN_KERNEL_WITHIN(threads, registers)   the same, that uses so many registers a thread or not many more
//   FORERUN_SHARED(T, name)   a variable that the block shares, uninitialised
//   FORERUN_HOPPER            bulk copies, barriers in shared memory and 16-byte compare-and-swap are there (sm_90)
#pragma once

#if defined(FORERUN_SHIM)

#include "shim/machine.h"
#define FORERUN_DEVICE inline
#define FORERUN_KERNEL(threads) extern "C" void
#define FORERUN_KERNEL_WITHIN(threads, registers) FORERUN_KERNEL(threads)
#define FORERUN_SHARED(T, name) T& name = forerun::shim::shared_variable<T>(forerun::shim::Site::here())
#define FORERUN_HOPPER 1

#else

#define FORERUN_DEVICE __device__ __forceinline__
#define FORERUN_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
// Said by the blocks that are to fit a multiprocessor: left to itself, ptxas spills a little to fit
// one more.
#define FORERUN_KERNEL_WITHIN(threads, registers) extern "C" __global__ void __launch_bounds__(threads, 65536 / ((threads) * (registers)))
#define FORERUN_SHARED(T, name) __shared__ T name
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define FORERUN_HOPPER 1
#else
#define FORERUN_HOPPER 0
#endif

#endif
