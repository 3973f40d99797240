// All kernels of a product build. They form one image, which is compiled, embedded and loaded as a
// whole.
#include "gather.cu"
#include "hot_pool.cu"
#include "table.cu"
