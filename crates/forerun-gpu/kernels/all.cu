// Every kernel of the crate, as one image: what is compiled, embedded and loaded.
#include "busy.cu"
#include "gather.cu"
#include "roofline.cu"
#include "table.cu"
