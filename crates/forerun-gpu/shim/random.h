// The numbers that determine a schedule: the same for the same seed on every machine (splitmix64).
#pragma once
#include <cstdint>

namespace forerun::shim {

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t next() {
        uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    // Less than `bound`, which is not 0.
    uint64_t below(uint64_t bound) { return next() % bound; }
    bool coin() { return next() >> 63 != 0; }

  private:
    uint64_t state_;
};

}  // namespace forerun::shim
