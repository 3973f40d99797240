// All kernels of a product build in one image, which is compiled, embedded and loaded as a whole.
#include "gather.cu"
#include "table.cu"
