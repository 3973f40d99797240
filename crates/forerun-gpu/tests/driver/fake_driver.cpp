// A CUDA driver and an NVRTC for tests, without a device: libcuda.so and libnvrtc.so of
// tests/driver.rs.
//
// Device memory is host memory. Work on a stream is done when something waits for it, not earlier.
// Row copies run (fake_gather.h), other kernels do not; all launches are checked as the driver
// checks them. fake_graphs.h has streams, events and captures. There are two devices,
// so two contexts. This driver enforces what the real one requires of its caller: a call that needs
// a context fails without one, or with another device's; pinned memory is not freed while copies
// are in flight; no memory is allocated or freed while another thread captures a graph, unless the
// calling thread's mode is relaxed. As with the real one, pinned memory does not exist in a fork.
//
//   FAKE_DRIVER_VERSION=12020     the CUDA version that the driver supports (default 12020)
//   FAKE_DRIVER_REFUSES=elf,ptx   the forms of images that it does not load
//   FAKE_DRIVER_OUT_OF_MEMORY=1   it has no memory for images
//
// Tests control it by the functions whose names begin with `fake`.
//
// An image that says cuda=13000 was made by a compiler of that version. As the driver does, this
// one loads machine code up to its own major version, and PTX up to its own version.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "fake_gather.h"

namespace {

enum Result {
    success = 0,
    invalid_value = 1,
    out_of_memory = 2,
    invalid_context = 201,
    unsupported_ptx_version = 222,
    no_binary_for_gpu = 209,
    not_found = 500,
    not_ready = 600,
    launch_failed = 719,
    capture_unsupported = 900,
    capture_invalidated = 901,
    captured_event = 907,
};

using Handle = uintptr_t;
constexpr int devices = 2;
constexpr Handle first_context = 0x1000;
constexpr size_t shared_without_opt_in = 48 << 10, shared_opt_in = 227 << 10;

// The contexts that are current on a thread, the newest last.
thread_local std::vector<Handle> current;

std::mutex mutex;
std::map<uintptr_t, size_t> allocations;                  // device memory
std::map<void*, size_t> registered;                       // host memory, by its first byte
std::map<std::string, std::pair<Handle, size_t>> kernels; // dynamic shared memory allowed
Handle last_kernel = 0x100000;
int modules_loaded = 0;
std::set<Handle> modules;  // those that are loaded now
std::string loads;   // one word for each try to load an image
std::string calls;   // one word for each copy, launch and wait
std::string faults;  // what the caller did wrong

// A stream's work that has not been done, in order. Stream 0 is the default stream.
std::map<Handle, std::vector<std::function<void()>>> queues;
std::map<void*, size_t> pinned;      // host memory that the driver allocated
int allocated = 0;                   // allocations and releases of any memory
size_t piece_bytes = 0;              // device memory is reported in pieces of this size; 0: whole

std::string failing;                 // the function that fails, after `passes` more calls
int passes = 0;
std::atomic<bool> is_held{false};    // launches wait until it is false
std::atomic<int> waiting{0};         // launches that wait
bool other_captures = false;         // another thread captures a graph, in the mode `global`
thread_local int capture_mode = 0;   // 0: global, 1: of this thread, 2: relaxed

// Whether this call must fail.
bool fails(const char* function) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (failing != function || passes-- > 0) return false;
    failing.clear();
    return true;
}
void called(const char* word, Handle stream) {
    const std::lock_guard<std::mutex> lock(mutex);
    const Handle number = stream < 0x2000 ? stream : stream - 0x2000;
    calls += std::string(word) + ":" + std::to_string(number) + " ";
}
void enqueue(Handle stream, std::function<void()> work);
void finish(Handle stream);
void finish_all();
bool is_capturing();
void expect_idle(const char* what) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (auto& [stream, work] : queues) {
        if (!work.empty()) faults += std::string(what) + " while work is in flight; ";
    }
}
// Whether a call that may be unsafe during a capture is prohibited. It then breaks the capture.
bool prohibited(const char* what) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (capture_mode == 2 || !(other_captures || is_capturing())) return false;
    faults += std::string(what) + " breaks a capture; ";
    return true;
}

// Contexts 0x1000 and 0x1001.
bool has_context() { return !current.empty() && current.back() != 0; }
bool is_first() { return has_context() && current.back() == first_context; }

bool refuses(const char* form) {
    const char* refused = std::getenv("FAKE_DRIVER_REFUSES");
    return refused != nullptr && std::strstr(refused, form) != nullptr;
}
int driver_version() {
    const char* text = std::getenv("FAKE_DRIVER_VERSION");
    return text == nullptr ? 12020 : std::atoi(text);
}
// Of the compiler that made an image, 0 if it does not say so.
int image_version(const char* image) {
    return std::strncmp(image + 4, "cuda=", 5) == 0 ? std::atoi(image + 9) : 0;
}
void copy_text(char* to, int length, const char* from) {
    std::strncpy(to, from, size_t(length) - 1);
    to[length - 1] = 0;
}

}  // namespace

#define API extern "C" int
#define NEEDS_CONTEXT                        \
    do {                                     \
        if (!is_first()) return invalid_context; \
        if (fails(__func__)) return launch_failed; \
    } while (false)
#define UNSAFE_DURING_CAPTURE \
    if (prohibited(__func__)) return capture_unsupported

// For the tests: the images that were tried, in order.
extern "C" const char* fakeLoads() { return loads.c_str(); }
// The copies, fills, launches and waits since the last call of this function, with the numbers of
// their streams.
extern "C" const char* fakeCalls() {
    static std::string last;
    const std::lock_guard<std::mutex> lock(mutex);
    last = std::exchange(calls, "");
    return last.c_str();
}
// What the caller did wrong since the last call of this function.
extern "C" const char* fakeFaults() {
    static std::string last;
    const std::lock_guard<std::mutex> lock(mutex);
    last = std::exchange(faults, "");
    return last.c_str();
}
// Makes a call of a function fail, after this many that do not.
extern "C" void fakeFail(const char* function, int after) {
    const std::lock_guard<std::mutex> lock(mutex);
    failing = function;
    passes = after;
}
// Makes launches wait, or lets them go on.
extern "C" void fakeHold(int held) { is_held = held != 0; }
// Allocations and releases of device and pinned memory so far.
API fakeAllocated() { return allocated; }
// Reports device memory in pieces of this size, as if it had been mapped piece by piece.
extern "C" void fakePieces(int bytes) { piece_bytes = size_t(bytes); }
// Does all work that streams have.
extern "C" void fakeFinish(int) { finish_all(); }
// Launches that wait now.
API fakeWaiting() { return waiting; }
// Begins or ends a capture by another thread.
extern "C" void fakeCapture(int captures) {
    const std::lock_guard<std::mutex> lock(mutex);
    other_captures = captures != 0;
}
API cuInit(unsigned) { return success; }
API cuDriverGetVersion(int* version) {
    *version = driver_version();
    return success;
}
API cuGetErrorName(int result, const char** name) {
    *name = result == unsupported_ptx_version ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
            : result == no_binary_for_gpu     ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
            : result == invalid_context       ? "CUDA_ERROR_INVALID_CONTEXT"
            : result == launch_failed         ? "CUDA_ERROR_LAUNCH_FAILED"
            : result == capture_unsupported   ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
                                              : "CUDA_ERROR_INVALID_VALUE";
    return success;
}
API cuGetErrorString(int, const char** text) {
    *text = "the fake driver refuses";
    return success;
}

API cuDeviceGetCount(int* count) {
    *count = devices;
    return success;
}
API cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal < devices ? success : invalid_value;
}
API cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 75: *value = 9; break;                    // compute capability, major
        case 76: *value = 0; break;                    // minor
        case 16: *value = 132; break;                  // multiprocessors
        case 39: *value = 2048; break;                 // threads per multiprocessor
        case 97: *value = int(shared_opt_in); break;   // shared memory per block, opt-in
        case 100: *value = 0; break;                   // host page tables
        default: *value = 1;
    }
    return success;
}
API cuDeviceTotalMem_v2(size_t* bytes, int) {
    *bytes = size_t(1) << 33;
    return success;
}
API cuDeviceGetName(char* name, int length, int) {
    copy_text(name, length, "fake");
    return success;
}
API cuDeviceGetPCIBusId(char* name, int length, int) {
    copy_text(name, length, "ffff:00:00.0");
    return success;
}

API cuDevicePrimaryCtxRetain(Handle* context, int device) {
    *context = first_context + Handle(device);
    return success;
}
API cuDevicePrimaryCtxRelease_v2(int) { return success; }
API cuCtxSetCurrent(Handle context) {
    if (!current.empty()) current.pop_back();
    if (context != 0) current.push_back(context);
    return success;
}
API cuCtxGetCurrent(Handle* context) {
    *context = current.empty() ? 0 : current.back();
    return success;
}
API cuCtxGetDevice(int* device) {
    if (!has_context()) return invalid_context;
    *device = int(current.back() - first_context);
    return success;
}
API cuCtxPushCurrent_v2(Handle context) {
    if (context == 0) return invalid_context;
    current.push_back(context);
    return success;
}
API cuCtxPopCurrent_v2(Handle* context) {
    if (current.empty()) return invalid_context;
    if (context != nullptr) *context = current.back();
    current.pop_back();
    return success;
}
API cuCtxSynchronize() {
    NEEDS_CONTEXT;
    finish_all();
    return success;
}
API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    NEEDS_CONTEXT;
    *least = 0, *greatest = -5;
    return success;
}
API cuThreadExchangeStreamCaptureMode(int* mode) {
    std::swap(*mode, capture_mode);
    return success;
}

API cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    NEEDS_CONTEXT;
    UNSAFE_DURING_CAPTURE;
    const std::lock_guard<std::mutex> lock(mutex);
    *address = reinterpret_cast<uint64_t>(::operator new(bytes, std::align_val_t(256)));
    allocations[*address] = bytes;
    ++allocated;
    return success;
}
// Waits for all work, as the driver does.
API cuMemFree_v2(uint64_t address) {
    NEEDS_CONTEXT;
    UNSAFE_DURING_CAPTURE;
    finish_all();
    const std::lock_guard<std::mutex> lock(mutex);
    if (allocations.erase(address) == 0) return invalid_value;
    ++allocated;
    ::operator delete(reinterpret_cast<void*>(address), std::align_val_t(256));
    return success;
}
API cuMemsetD8Async(uint64_t address, unsigned char byte, size_t bytes, Handle stream) {
    NEEDS_CONTEXT;
    called("fill", stream);
    enqueue(stream, [=] { std::memset(reinterpret_cast<void*>(address), byte, bytes); });
    return success;
}
API cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Handle stream) {
    NEEDS_CONTEXT;
    called("in", stream);
    enqueue(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
    return success;
}
API cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Handle stream) {
    NEEDS_CONTEXT;
    called("out", stream);
    enqueue(stream, [=] { std::memcpy(to, reinterpret_cast<void*>(from), bytes); });
    return success;
}
API cuMemsetD8_v2(uint64_t address, unsigned char byte, size_t bytes) {
    return cuMemsetD8Async(address, byte, bytes, 0);
}
API cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
    UNSAFE_DURING_CAPTURE;
    const int result = cuMemcpyHtoDAsync_v2(to, from, bytes, 0);
    if (result == success) finish(0);
    return result;
}
API cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
    UNSAFE_DURING_CAPTURE;
    const int result = cuMemcpyDtoHAsync_v2(to, from, bytes, 0);
    if (result == success) finish(0);
    return result;
}
API cuMemHostAlloc(void** address, size_t bytes, unsigned) {
    NEEDS_CONTEXT;
    UNSAFE_DURING_CAPTURE;
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || madvise(memory, bytes, MADV_DONTFORK) != 0) return out_of_memory;
    const std::lock_guard<std::mutex> lock(mutex);
    pinned[memory] = bytes;
    ++allocated;
    *address = memory;
    return success;
}
API cuMemFreeHost(void* address) {
    NEEDS_CONTEXT;
    UNSAFE_DURING_CAPTURE;
    expect_idle("pinned memory is freed");
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = pinned.find(address);
    if (found == pinned.end()) return invalid_value;
    munmap(address, found->second);
    pinned.erase(found);
    ++allocated;
    return success;
}
API cuMemHostGetDevicePointer_v2(uint64_t* address, void* host, unsigned) {
    NEEDS_CONTEXT;
    *address = reinterpret_cast<uint64_t>(host);
    return success;
}
API cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
    NEEDS_CONTEXT;
    if (bytes == 0) return invalid_value;
    const std::lock_guard<std::mutex> lock(mutex);
    return registered.emplace(address, bytes).second ? success : invalid_value;
}
API cuMemHostUnregister(void* address) {
    NEEDS_CONTEXT;
    expect_idle("memory is unregistered");
    const std::lock_guard<std::mutex> lock(mutex);
    return registered.erase(address) == 1 ? success : invalid_value;
}
// Describes the memory at an address. As in the real driver, unknown memory has zeros.
API cuPointerGetAttributes(unsigned count, int* attributes, void** places, uint64_t address) {
    NEEDS_CONTEXT;
    unsigned type = 0;
    uint64_t start = 0;
    size_t bytes = 0;
    const auto look = [&](unsigned kind, uint64_t first, size_t length) {
        if (address - first < length) type = kind, start = first, bytes = length;
    };
    {
        const std::lock_guard<std::mutex> lock(mutex);
        for (auto& [first, length] : allocations) look(2, first, length);
        for (auto& [first, length] : pinned) look(1, reinterpret_cast<uint64_t>(first), length);
        for (auto& [first, length] : registered) look(1, reinterpret_cast<uint64_t>(first), length);
        if (type == 2 && piece_bytes != 0) {
            const uint64_t end = start + bytes;
            start += (address - start) / piece_bytes * piece_bytes;
            bytes = std::min<uint64_t>(piece_bytes, end - start);
        }
    }
    for (unsigned i = 0; i < count; ++i) {
        switch (attributes[i]) {
            case 2: *static_cast<unsigned*>(places[i]) = type; break;
            case 3: *static_cast<uint64_t*>(places[i]) = type == 0 ? 0 : address; break;
            case 8: *static_cast<unsigned*>(places[i]) = 0; break;   // managed
            case 9: *static_cast<int*>(places[i]) = 0; break;        // the device's number
            case 10:   // an allocation of its own, not a piece
                *static_cast<unsigned*>(places[i]) = type == 2 && piece_bytes == 0;
                break;
            case 11: *static_cast<uint64_t*>(places[i]) = start; break;
            case 12: *static_cast<size_t*>(places[i]) = bytes; break;
            default: return invalid_value;
        }
    }
    return success;
}
// For the tests: the ranges that are registered now.
API fakeRegistered() {
    const std::lock_guard<std::mutex> lock(mutex);
    return int(registered.size());
}

// For the tests: the images that are loaded now.
API fakeModules() {
    const std::lock_guard<std::mutex> lock(mutex);
    return int(modules.size());
}

#include "fake_graphs.h"

API cuModuleLoadData(Handle* module, const void* image) {
    NEEDS_CONTEXT;
    const bool is_elf = std::memcmp(image, "\177ELF", 4) == 0;
    const int made_by = image_version(static_cast<const char*>(image));
    loads += is_elf ? "elf " : "ptx ";
    if (std::getenv("FAKE_DRIVER_OUT_OF_MEMORY") != nullptr) return out_of_memory;
    if (is_elf && (refuses("elf") || made_by / 1000 > driver_version() / 1000))
        return no_binary_for_gpu;
    if (!is_elf && (refuses("ptx") || made_by > driver_version())) return unsupported_ptx_version;
    *module = Handle(0x5000 + ++modules_loaded);
    const std::lock_guard<std::mutex> lock(mutex);
    modules.insert(*module);
    return success;
}
API cuModuleUnload(Handle module) {
    NEEDS_CONTEXT;
    expect_idle("a module is unloaded");
    const std::lock_guard<std::mutex> lock(mutex);
    if (modules.erase(module) == 0) return invalid_value;
    return success;
}
API cuModuleGetFunction(Handle* function, Handle, const char* name) {
    NEEDS_CONTEXT;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto added = kernels.try_emplace(name, ++last_kernel, shared_without_opt_in);
    *function = added.first->second.first;
    return success;
}
API cuFuncGetAttribute(int* value, int attribute, Handle) {
    NEEDS_CONTEXT;
    *value = attribute == 1 ? 0 : 32;  // 1: static shared memory
    return success;
}
API cuFuncSetAttribute(Handle function, int attribute, int value) {
    NEEDS_CONTEXT;
    const std::lock_guard<std::mutex> lock(mutex);
    for (auto& [name, kernel] : kernels) {
        if (kernel.first != function) continue;
        if (attribute != 8 || value < 0 || size_t(value) > shared_opt_in) return invalid_value;
        kernel.second = size_t(value);
        return success;
    }
    return not_found;
}
API cuLaunchKernel(Handle function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   unsigned shared_bytes, Handle stream, void** arguments, void**) {
    NEEDS_CONTEXT;
    ++waiting;
    while (is_held) usleep(100);
    --waiting;
    called("launch", stream);
    Result result = not_found;
    std::function<void()> work = [] {};
    {
        const std::lock_guard<std::mutex> lock(mutex);
        for (auto& [name, kernel] : kernels) {
            if (kernel.first != function) continue;
            result = shared_bytes <= kernel.second ? success : invalid_value;
            if (name.rfind("gather_", 0) == 0) {
                const auto params = *static_cast<const forerun::GatherParams*>(arguments[0]);
                work = [params] { fake_gather(params); };
            }
        }
    }
    if (result == success) enqueue(stream, std::move(work));
    return result;
}

// NVRTC, which compiles everything to an image with an ELF's first bytes.
API nvrtcVersion(int* major, int* minor) {
    *major = 12, *minor = 2;
    return success;
}
API nvrtcCreateProgram(Handle* program, const char*, const char*, int, const char* const*,
                       const char* const*) {
    *program = 1;
    return success;
}
API nvrtcDestroyProgram(Handle*) { return success; }
API nvrtcCompileProgram(Handle, int, const char* const*) {
    loads += "nvrtc ";
    return success;
}
API nvrtcGetCUBINSize(Handle, size_t* bytes) {
    *bytes = 8;
    return success;
}
API nvrtcGetCUBIN(Handle, char* image) {
    std::memcpy(image, "\177ELF", 4);
    std::memset(image + 4, 0, 4);
    return success;
}
