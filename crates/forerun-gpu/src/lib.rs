//! Row gathers between pinned host memory and the GPU.
