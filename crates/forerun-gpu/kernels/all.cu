// All kernels of the crate in one image, which is compiled, embedded and loaded as a whole.
#include "busy.cu"
#include "gather.cu"
#include "roofline.cu"
#include "table.cu"
