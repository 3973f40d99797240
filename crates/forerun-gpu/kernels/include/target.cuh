// The compilation target: a GPU (by nvcc or NVRTC), or the host, where a shim runs each lane as a
// fiber (-DFORERUN_SHIM; see shim/). Kernels use only the definitions of this folder, which hide
// every difference between the targets.
//
//   FORERUN_DEVICE            a device function
//   FORERUN_KERNEL(threads)   an entry point, for blocks of at most this many threads
//   FORERUN_KERNEL_WITHIN(threads, registers)   the same, with about this many registers per thread at most
//   FORERUN_SHARED(T, name)   a variable that the block shares, uninitialised
//   FORERUN_HOPPER            bulk copies and barriers in shared memory are available (sm_90)
#pragma once

#if defined(FORERUN_SHIM)

#include "shim/machine.h"
#define FORERUN_DEVICE inline
#define FORERUN_KERNEL(threads) extern "C" void
#define FORERUN_KERNEL_WITHIN(threads, registers) FORERUN_KERNEL(threads)
#define FORERUN_SHARED(T, name) \
    T& name = forerun::shim::shared_variable<T>(forerun::shim::Site::here())
#define FORERUN_HOPPER 1

#else

#define FORERUN_DEVICE __device__ __forceinline__
#define FORERUN_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
// The threads that a multiprocessor holds.
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 870 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
#define FORERUN_RESIDENT_THREADS 1536
#else
#define FORERUN_RESIDENT_THREADS 2048
#endif
// States the number of blocks that a multiprocessor must hold. Without it, ptxas spills a few
// registers to fit one more block.
#define FORERUN_KERNEL_WITHIN(threads, registers)                           \
    extern "C" __global__ void __launch_bounds__(                           \
        threads, (65536 / (registers) < FORERUN_RESIDENT_THREADS            \
                      ? 65536 / (registers)                                 \
                      : FORERUN_RESIDENT_THREADS) / (threads))
#define FORERUN_SHARED(T, name) __shared__ T name
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define FORERUN_HOPPER 1
#else
#define FORERUN_HOPPER 0
#endif

#endif
