// The kernels of a product build, and the kernels that only the benchmarks use.
#include "all.cu"
#include "busy.cu"
#include "gather_study.cu"
#include "litmus.cu"
#include "roofline.cu"
#include "table_study.cu"
