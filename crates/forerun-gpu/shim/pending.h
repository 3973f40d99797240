// The plain data of the shim: requests that a lane has not waited for yet, and meetings of lanes.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <vector>

namespace forerun::shim {

// The place of a call in the sources: the defaults of `here` are those of the outermost call.
struct Site {
    const char* file;
    int line;
    static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
    bool operator==(const Site& other) const {
        return line == other.line && same_text(file, other.file);
    }

    // Compares literals, which are usually, but not always, the same object.
    static bool same_text(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }
};

// The content of memory between a copy's start and its end, before it is written, and after its
// lifetime.
constexpr unsigned char poison = 0xdb;

// Bytes in flight. The schedule decides whether the source is read at the start or at the end, so a
// write in between is detected.
struct Copy {
    unsigned char* to;
    const unsigned char* from;
    uint32_t bytes;
    std::vector<unsigned char> taken;  // empty: read at the end

    void take() {
        if (taken.empty()) taken.assign(from, from + bytes);
    }
    void land() {
        take();
        std::memcpy(to, taken.data(), bytes);
    }
};

// Copies in groups that are waited for from the oldest on.
struct CopyGroups {
    std::vector<Copy> open;
    std::vector<std::vector<Copy>> closed;  // the oldest first; they are few

    void commit() {
        closed.push_back(std::move(open));
        open.clear();
    }
    void land_oldest() {
        for (Copy& copy : closed.front()) copy.land();
        closed.erase(closed.begin());
    }
    void clear() {
        open.clear();
        closed.clear();
    }
    bool empty() const {
        if (!open.empty()) return false;
        for (const auto& group : closed) {
            if (!group.empty()) return false;
        }
        return true;
    }
};

// A barrier in shared memory, as drawn in `bulk.cuh`.
struct BarrierState {
    uint32_t arrivals = 0, arrivals_left = 0;
    int64_t bytes_left = 0;
    uint32_t phase = 0;
    std::vector<Copy> loads;  // loads that the barrier counts
};

// Lanes of a warp in one collective call.
struct Meeting {
    const char* what;
    Site site;
    uint32_t mask = 0, arrived = 0, gone = 0;
    unsigned char values[32][16];

    bool complete() const { return arrived == mask; }
};

}  // namespace forerun::shim
