// A separate stack for a function, and the switch between two stacks.
//
//   mapped:   | page that faults | stack_bytes ......................... |
//                                  grows down <- the lane's stack
//
// The switch saves the callee-saved registers and leaves the rest to the compiler. Under
// AddressSanitizer it announces the new stack. On CPUs other than x86-64 and aarch64 it uses
// swapcontext.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#define FORERUN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FORERUN_ASAN 1
#endif
#endif

#if defined(FORERUN_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
asm(R"(
    .text
    .p2align 4
    .type forerun_switch_stack, @function
forerun_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size forerun_switch_stack, .-forerun_switch_stack
)");
#define FORERUN_SWITCH 1
#elif defined(__aarch64__)
asm(R"(
    .text
    .p2align 4
    .type forerun_switch_stack, %function
forerun_switch_stack:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x2, sp
    str x2, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size forerun_switch_stack, .-forerun_switch_stack
)");
#define FORERUN_SWITCH 1
#else
#include <ucontext.h>
#endif

#if defined(FORERUN_SWITCH)
extern "C" void forerun_switch_stack(void** save, void* enter) asm("forerun_switch_stack");
#endif

namespace forerun::shim {

// A stack that can be left and re-entered. The default one is the thread's own.
class Fiber {
  public:
    static constexpr size_t stack_bytes = 64 * 1024;
    static constexpr size_t page_bytes = 4096;

    Fiber() = default;
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;
    ~Fiber() {
        if (mapped_ == nullptr) return;
        unpoison();  // for the next mapping at this address
        munmap(mapped_, stack_bytes + page_bytes);
    }

    // Makes the fiber start with `entry`, which never returns, when it is next switched to.
    void prepare(void (*entry)()) {
        if (mapped_ == nullptr) map();
        unsigned char* top = stack_ + stack_bytes;
        unpoison();
        fake_stack_ = nullptr;
#if defined(__x86_64__)
        auto* words = reinterpret_cast<void**>(top);
        words[-1] = nullptr;  // the place of a return address
        words[-2] = reinterpret_cast<void*>(entry);
        for (int i = 3; i <= 8; ++i) words[-i] = nullptr;
        pointer_ = words - 8;
#elif defined(__aarch64__)
        auto* words = reinterpret_cast<void**>(top - 160);
        for (int i = 0; i < 20; ++i) words[i] = nullptr;
        words[11] = reinterpret_cast<void*>(entry);  // x30
        pointer_ = words;
#else
        getcontext(&context_);
        context_.uc_stack.ss_sp = stack_;
        context_.uc_stack.ss_size = stack_bytes;
        context_.uc_link = nullptr;
        makecontext(&context_, entry, 0);
        (void)top;
#endif
    }

    // Called at the very start of an entry function.
    static void begun([[maybe_unused]] Fiber& from) {
#if defined(FORERUN_ASAN)
        __sanitizer_finish_switch_fiber(nullptr, from.known_bottom(), from.known_size());
#endif
    }

    // Switches from `this`, which is running, to `to`. Returns when `this` is re-entered; with
    // `for_good` it never is.
    void switch_to(Fiber& to, [[maybe_unused]] bool for_good = false) {
#if defined(FORERUN_ASAN)
        __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, to.stack_, to.size_);
#endif
#if defined(FORERUN_SWITCH)
        forerun_switch_stack(&pointer_, to.pointer_);
#else
        swapcontext(&context_, &to.context_);
#endif
#if defined(FORERUN_ASAN)
        __sanitizer_finish_switch_fiber(fake_stack_, to.known_bottom(), to.known_size());
#endif
    }

  private:
    // A fiber that is never re-entered leaves frames with poisoned redzones behind.
    void unpoison() {
#if defined(FORERUN_ASAN)
        if (begun_) ASAN_UNPOISON_MEMORY_REGION(stack_, stack_bytes);
        begun_ = true;
#endif
    }

    void map() {
        void* mapped = mmap(nullptr, stack_bytes + page_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED || mprotect(mapped, page_bytes, PROT_NONE) != 0) {
            std::perror("no stack for a lane");
            std::exit(70);
        }
        mapped_ = mapped;
        stack_ = static_cast<unsigned char*>(mapped) + page_bytes;
        size_ = stack_bytes;
    }

#if defined(FORERUN_ASAN)
    // The bounds of the thread's own stack are unknown. The first fiber entered from it reports
    // them.
    const void** known_bottom() {
        return mapped_ == nullptr ? const_cast<const void**>(reinterpret_cast<void**>(&stack_))
                                  : nullptr;
    }
    size_t* known_size() { return mapped_ == nullptr ? &size_ : nullptr; }
#endif

    void* mapped_ = nullptr;
    unsigned char* stack_ = nullptr;
    size_t size_ = 0;
    void* fake_stack_ = nullptr;
    [[maybe_unused]] bool begun_ = false;
#if defined(FORERUN_SWITCH)
    void* pointer_ = nullptr;
#else
    ucontext_t context_;
#endif
};

}  // namespace forerun::shim
