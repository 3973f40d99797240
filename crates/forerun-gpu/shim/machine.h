// A GPU for tests: each lane is a fiber, and a seeded scheduler decides which one runs.
//
//   Machine ── blocks in seeded order, `resident` of them at a time
//               └ Block ── shared memory (poisoned), barriers, warps
//                          └ Lane ── a fiber: ready, waiting or done; its copies in flight
//
// A lane may be suspended at every load, store and atomic (`point`). It waits in every collective
// call and barrier until the lanes named there have arrived. The seed determines how the next lane
// is chosen: at random, the longest ready, or the most recently ready, with short or long turns.
// Each seed determines one schedule, so failures can be reproduced.
//
// It detects: results that depend on the schedule, by comparison over seeds; reads of bytes that
// have not been waited for (poison); a named lane that never arrives, with the place of each
// waiting lane; a lane that waits for a lock while a lane of its warp may hold it; shared memory
// out of bounds, wrong alignment and similar errors, by the sanitizers it is compiled with.
//
// With `stores_held` it also detects missing fences and releases: stores land late and in any order
// (held_stores.h). With `loads_stale` it detects missing acquires: loads return older values
// (stale_loads.h).
//
// Plain accesses that bypass load() and store() are not scheduling points. Nothing here measures
// time.
#pragma once
#include <algorithm>
#include <cstdarg>
#include <deque>
#include <functional>
#include <string>

#include "fiber.h"
#include "pending.h"
#include "random.h"

namespace forerun::shim {

struct Block;

// Landings, by their number, up to the given one: see stale_loads.h.
struct Sight {
    uint64_t sees = 0;
    uint64_t met = 0;     // carried by values that the lane has read
    uint64_t fenced = 0;  // before its last fence
};

struct Lane {
    enum class State { ready, waiting, done };

    Fiber fiber;
    Block* block = nullptr;
    uint32_t thread = 0;
    State state = State::done;
    const char* waits_for = nullptr;
    Site waits_at = {nullptr, 0};
    uint32_t waits_mask = 0;
    CopyGroups copies;  // cp.async
    CopyGroups stores;  // cp.async.bulk to global memory
    uint32_t locks = 0;         // held in global memory
    uint32_t failed_tries = 0;  // to get a lock, since the lane last met its whole warp
    Sight sight;

    uint32_t in_warp() const { return thread % 32; }
    uint32_t bit() const { return 1u << in_warp(); }
};

// See held_stores.h.
struct HeldStore {
    unsigned char* to;
    uint32_t bytes;
    uint32_t lanes;
    uint64_t carries;
    unsigned char value[16];
};

// See stale_loads.h.
struct Landing {
    unsigned char* to;
    uint32_t bytes;
    uint64_t number, carries;
    uint32_t known_to[8];  // a bit per lane of each warp; warps that are 8 apart share them
    unsigned char before[16];
};
struct Landings {
    std::deque<Landing> latest;  // the newest last
    uint64_t count = 0;          // in the launch
};

struct Warp {
    uint32_t number = 0;  // of those that the launch has started
    std::vector<HeldStore> held;
    uint32_t present = 0;  // lanes that exist and have not left the kernel
    std::vector<std::unique_ptr<Meeting>> meetings, ended;
};

struct Block {
    struct FreeShared {
        void operator()(unsigned char* memory) const {
            ::operator delete(memory, std::align_val_t(128));
        }
    };
    using Shared = std::unique_ptr<unsigned char, FreeShared>;
    struct Variable {
        Site site;
        size_t bytes;
        Shared memory;
    };

    uint32_t index = 0;  // in its grid
    uint32_t grid = 0;   // blocks of it
    const std::function<void()>* kernel = nullptr;
    uint32_t live = 0;
    uint32_t at_barrier = 0;
    std::vector<Lane*> lanes;
    std::vector<Warp> warps;
    Shared dynamic;
    std::vector<Variable> variables;
    std::map<const void*, BarrierState> barriers;

    // Whether the place is in shared memory, of which this many bytes are dynamic.
    bool has_shared(const void* place, size_t dynamic_bytes) const {
        const auto* const byte = static_cast<const unsigned char*>(place);
        bool found = byte >= dynamic.get() && byte < dynamic.get() + dynamic_bytes;
        for (const Variable& variable : variables) {
            const unsigned char* const first = variable.memory.get();
            found |= byte >= first && byte < first + variable.bytes;
        }
        return found;
    }

    // Allocates exactly this many bytes, so that the sanitizer guards the next one.
    static Shared allocate(size_t bytes) {
        Shared memory(static_cast<unsigned char*>(
            ::operator new(bytes == 0 ? 1 : bytes, std::align_val_t(128))));
        std::memset(memory.get(), poison, bytes);
        return memory;
    }
};

struct Launch {
    uint32_t blocks = 1;
    uint32_t threads = 32;
    size_t shared_bytes = 0;
    uint64_t seed = 0;
    uint32_t resident = 2;          // blocks that run at the same time
    uint32_t points_per_turn = 0;   // mean; 0: chosen by the seed
    uint32_t stores_held = 0;       // at most this many by a warp; 0: stores land at once
    uint32_t loads_stale = 0;       // by at most this many landings; 0: loads read what has landed
    uint64_t turns_max = 1u << 26;  // beyond this, the launch fails because lanes spin
    // Called for every load_once() and load(), if set.
    std::function<void(const void* address, uint32_t bytes, uint32_t thread)> watch_loads = nullptr;
};

struct Outcome {
    std::string failure;  // empty: every lane finished
    uint64_t turns = 0;
    bool ok() const { return failure.empty(); }
};

class Machine {
  public:
    // A grid of blocks that run a kernel.
    struct Grid {
        uint32_t blocks;
        std::function<void()> kernel;
    };

    // Runs a kernel to its end or to the first failure.
    template <typename Params>
    static Outcome run(const Launch& launch, void (*kernel)(Params), const Params& params) {
        return run_beside(launch, {{launch.blocks, [&] { kernel(params); }}});
    }
    // Runs kernels at the same time, like those of several streams: all their blocks start in one
    // seeded order. The launch determines everything except the number of blocks.
    static Outcome run_beside(const Launch& launch, std::vector<Grid> grids) {
        return Machine(launch, std::move(grids)).run_all();
    }

    static Machine& current() { return *running; }
    Lane& lane() { return *lane_; }
    Block& block() { return *lane_->block; }
    const Launch& launch() const { return launch_; }
    Random& random() { return random_; }
    Landings& landings() { return landings_; }
    bool is_shared(const void* place) const {
        for (const auto& block : blocks_) {
            if (block->has_shared(place, launch_.shared_bytes)) return true;
        }
        return false;
    }

    // Another lane may run here.
    void point() {
        if (--points_left_ == 0) pause();
    }

    // Lets another lane run, if any is ready.
    void pause() {
        lane_->state = Lane::State::ready;
        // Moves to the far end of the queue, so that the others run first in every order.
        if (order_ == Order::oldest) {
            ready_.push_back(lane_);
        } else {
            ready_.push_front(lane_);
        }
        leave();
    }

    // Suspends the lane until another lane wakes it.
    void wait(const char* what, Site site, uint32_t mask = 0) {
        lane_->state = Lane::State::waiting;
        lane_->waits_for = what;
        lane_->waits_at = site;
        lane_->waits_mask = mask;
        leave();
    }
    void wake(Lane& lane) {
        if (lane.state != Lane::State::waiting) return;
        lane.state = Lane::State::ready;
        lane.waits_for = nullptr;
        ready_.push_back(&lane);
    }

    // Ends the launch, from within a lane.
    [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char* format, ...) {
        va_list arguments;
        va_start(arguments, format);
        char text[512];
        std::vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        failure_ = "block " + std::to_string(lane_->block->index) + ", thread " +
                   std::to_string(lane_->thread) + ": " + text;
        lane_->fiber.switch_to(home_, true);
        std::abort();  // a launch that was given up is never resumed
    }

  private:
    enum class Order { any, oldest, newest };
    struct Start {
        const Grid* grid;
        uint32_t index;
    };
    using Fibers = std::vector<std::unique_ptr<Lane>>;

    Machine(const Launch& launch, std::vector<Grid> grids)
        : launch_(launch),
          grids_(std::move(grids)),
          random_(launch.seed * 0x2545f4914f6cdd1du + 1) {
        order_ = Order(random_.below(3));
        static constexpr uint32_t turns[] = {1, 3, 16, 256};
        const uint32_t drawn = turns[random_.below(4)];
        points_per_turn_ = launch.points_per_turn != 0 ? launch.points_per_turn : drawn;
    }

    Outcome run_all() {
        Machine* const outer = running;
        running = this;
        for (const Grid& grid : grids_) {
            for (uint32_t b = 0; b < grid.blocks; ++b) to_start_.push_back({&grid, b});
        }
        for (size_t i = to_start_.size(); i > 1; --i)
            std::swap(to_start_[i - 1], to_start_[random_.below(i)]);
        while (blocks_.size() < launch_.resident && !to_start_.empty()) start_block();

        uint64_t turns = 0;
        while (failure_.empty() && !blocks_.empty()) {
            if (ready_.empty()) {
                failure_ = who_waits();
            } else if (++turns > launch_.turns_max) {
                failure_ = "not finished after " + std::to_string(launch_.turns_max) +
                           " turns: lanes wait for each other in a loop";
            } else {
                turn(take_ready());
            }
        }
        running = outer;
        return {failure_, turns};
    }

    // The pool of lanes. Stacks are mapped once per process.
    static Fibers& idle() {
        static Fibers lanes;
        return lanes;
    }

    void start_block() {
        auto block = std::make_unique<Block>();
        const Start start = to_start_.back();
        block->index = start.index;
        block->grid = start.grid->blocks;
        block->kernel = &start.grid->kernel;
        to_start_.pop_back();
        block->live = launch_.threads;
        block->dynamic = Block::allocate(launch_.shared_bytes);
        block->warps.resize((launch_.threads + 31) / 32);
        for (Warp& warp : block->warps) warp.number = warps_started_++;
        for (uint32_t t = 0; t < launch_.threads; ++t) {
            if (idle().empty()) idle().push_back(std::make_unique<Lane>());
            lanes_.push_back(std::move(idle().back()));
            idle().pop_back();
            Lane& lane = *lanes_.back();
            lane.block = block.get();
            lane.thread = t;
            lane.state = Lane::State::ready;
            lane.copies.clear();
            lane.stores.clear();
            lane.locks = lane.failed_tries = 0;
            lane.sight = {landings_.count, landings_.count, landings_.count};
            lane.fiber.prepare(lane_entry);
            block->lanes.push_back(&lane);
            block->warps[t / 32].present |= lane.bit();
            ready_.push_back(&lane);
        }
        blocks_.push_back(std::move(block));
    }

    Lane& take_ready() {
        if (order_ == Order::any) std::swap(ready_.back(), ready_[random_.below(ready_.size())]);
        Lane* lane = order_ == Order::oldest ? ready_.front() : ready_.back();
        if (order_ == Order::oldest) {
            ready_.pop_front();
        } else {
            ready_.pop_back();
        }
        return *lane;
    }

    void turn(Lane& lane) {
        if (launch_.stores_held != 0) land_any();
        lane_ = &lane;
        points_left_ = points_per_turn_ == 1 ? 1 : 1 + random_.below(2 * points_per_turn_ - 1);
        home_.switch_to(lane.fiber);
        if (failure_.empty() && lane.state == Lane::State::done && lane.block->live == 0)
            retire(*lane.block);
    }

    // Lands some warp's stores, whether it runs or waits.
    void land_any();

    void retire(Block& block) {
        for (size_t i = 0; i < lanes_.size();) {
            if (lanes_[i]->block == &block) {
                idle().push_back(std::move(lanes_[i]));
                lanes_[i] = std::move(lanes_.back());
                lanes_.pop_back();
            } else {
                ++i;
            }
        }
        for (size_t i = 0; i < blocks_.size(); ++i) {
            if (blocks_[i].get() == &block) {
                blocks_[i] = std::move(blocks_.back());
                blocks_.pop_back();
                break;
            }
        }
        if (!to_start_.empty()) start_block();
    }

    void leave() { lane_->fiber.switch_to(home_); }

    static void lane_entry() {
        Fiber::begun(current().home_);
        (*current().lane_->block->kernel)();
        current().end_lane();
    }

    void end_lane();
    void check_end_of_lane() {
        if (lane_->locks != 0) fail("left the kernel with a lock");
        check_nothing_pending();
        check_nobody_waits();
    }
    void leave_kernel() {
        lane_->state = Lane::State::done;
        Block& block = *lane_->block;
        block.warps[lane_->thread / 32].present &= ~lane_->bit();
        --block.live;
        release_barrier(block);
        lane_->fiber.switch_to(home_, true);
    }

    void check_nothing_pending() {
        if (!lane_->copies.empty())
            fail("left the kernel with copies (cp.async) that it has not waited for");
        // Stores whose source has been read may be written when the kernel ends. The others still
        // need shared memory.
        for (auto& group : lane_->stores.closed) {
            for (auto& store : group) {
                if (store.taken.empty())
                    fail(
                        "left the kernel with bulk stores whose shared memory it has not waited "
                        "for");
                store.land();
            }
        }
        if (!lane_->stores.open.empty())
            fail("left the kernel with bulk stores that it has not committed");
        if (lane_->block->live > 1) return;
        for (auto& [address, barrier] : lane_->block->barriers) {
            if (!barrier.loads.empty())
                fail("the block ends with bulk loads in flight to the barrier at %p", address);
        }
    }

    void check_nobody_waits() {
        for (auto& meeting : lane_->block->warps[lane_->thread / 32].meetings) {
            if ((meeting->mask & lane_->bit()) != 0 && !meeting->complete()) {
                fail("left the kernel, but is waited for in %s (%s:%d), which names lanes 0x%08x",
                     meeting->what, meeting->site.file, meeting->site.line, meeting->mask);
            }
        }
    }

  public:
    // Opens the block's barrier once all lanes that have not ended have arrived.
    void release_barrier(Block& block) {
        if (block.live == 0 || block.at_barrier < block.live) return;
        block.at_barrier = 0;
        for (Lane* lane : block.lanes) {
            if (lane->waits_for == barrier_name) wake(*lane);
        }
    }
    static constexpr const char* barrier_name = "block_sync";

  private:
    std::string who_waits() const {
        std::string text = "no lane can continue:";
        uint32_t said = 0, more = 0;
        for (const auto& lane : lanes_) {
            if (lane->state != Lane::State::waiting) continue;
            if (++said > 8) {
                ++more;
                continue;
            }
            char line[256];
            std::snprintf(line, sizeof line, "\n  block %u, thread %u waits in %s (%s:%d)",
                          lane->block->index, lane->thread, lane->waits_for, lane->waits_at.file,
                          lane->waits_at.line);
            text += line;
            if (lane->waits_mask != 0) {
                std::snprintf(line, sizeof line, " for lanes 0x%08x", lane->waits_mask);
                text += line;
            }
        }
        if (more != 0) text += "\n  and " + std::to_string(more) + " more";
        return text;
    }

    inline static Machine* running = nullptr;

    Launch launch_;
    std::vector<Grid> grids_;
    Random random_;
    Order order_;
    uint32_t points_per_turn_;
    uint64_t points_left_ = 1;
    Fiber home_;
    Lane* lane_ = nullptr;
    Landings landings_;
    uint32_t warps_started_ = 0;
    std::string failure_;
    std::vector<Start> to_start_;
    std::vector<std::unique_ptr<Block>> blocks_;
    Fibers lanes_;
    std::deque<Lane*> ready_;
};

// The block's variable declared at `site`.
template <typename T> T& shared_variable(Site site) {
    Block& block = Machine::current().block();
    for (auto& variable : block.variables) {
        if (variable.site == site && variable.bytes == sizeof(T))
            return *reinterpret_cast<T*>(variable.memory.get());
    }
    block.variables.push_back({site, sizeof(T), Block::allocate(sizeof(T))});
    return *reinterpret_cast<T*>(block.variables.back().memory.get());
}

}  // namespace forerun::shim

#include "held_stores.h"

namespace forerun::shim {

inline void Machine::land_any() {
    Block& block = *blocks_[random_.below(blocks_.size())];
    Warp& warp = block.warps[random_.below(block.warps.size())];
    if (!warp.held.empty() && random_.below(4) == 0)
        land_store(warp, random_.below(warp.held.size()));
}

inline void Machine::end_lane() {
    check_end_of_lane();
    land_stores_of(*lane_);
    leave_kernel();
}

}  // namespace forerun::shim
