// The kernels of a product build, and those that only the benches use (src/study/).
#include "all.cu"
#include "busy.cu"
#include "litmus.cu"
#include "roofline.cu"
