// The kernels of a product build, and the kernels that only the benchmarks use (src/study/).
#include "all.cu"
#include "busy.cu"
#include "litmus.cu"
#include "roofline.cu"
