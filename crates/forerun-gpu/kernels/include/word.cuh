// Fixed-width integers without any header, because NVRTC has none of the host's.
#pragma once

namespace forerun {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i16 = short;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "widths");

}  // namespace forerun

// Asserts where the layout that the host declares in Rust has this field. NVRTC spells the builtin
// of its front end, not GCC's.
#ifdef __CUDACC_RTC__
#define FORERUN_OFFSET(type, field) __INTADDR__(&((type*)0)->field)
#else
#define FORERUN_OFFSET(type, field) __builtin_offsetof(type, field)
#endif
#define FORERUN_ASSERT_OFFSET(type, field, offset) \
    static_assert(FORERUN_OFFSET(type, field) == (offset), #type "." #field)
