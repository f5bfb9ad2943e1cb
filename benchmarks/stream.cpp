// The memory traffic of a step of MDA: reads g, x, x0, s and writes x, s, with almost no arithmetic.
#include <atomic>
#include <chrono>
#include <cstdint>

#include <omp.h>

extern "C" void stream(float* __restrict__ x, const float* __restrict__ g, const float* __restrict__ x0,
                       float* __restrict__ s, int64_t n, int threads) {
#pragma omp parallel for simd num_threads(threads) schedule(static) if (threads > 1 && n > 32768)
    for (int64_t i = 0; i < n; ++i) {
        s[i] += g[i];
        x[i] += x0[i];
    }
}

// Nanoseconds that a cache line takes from one core to the other; 0 if the exchanges take more than a hundredth of
// a second. On processors of several chiplets it tells whether two cores share one, and its path to memory.
extern "C" double between_cores() {
    using Clock = std::chrono::steady_clock;
    constexpr int ROUNDS = 500;
    alignas(64) std::atomic<int> turn{0};
    alignas(64) std::atomic<bool> over{false};
    const auto begun = Clock::now();
    const auto limit = begun + std::chrono::milliseconds(10);
#pragma omp parallel num_threads(2)
    {
        const int me = omp_get_thread_num();
        for (int i = 0; i < ROUNDS && !over; ++i) {
            while (turn.load(std::memory_order_acquire) != me && !over) {
                if (Clock::now() > limit) over = true;
            }
            turn.store(1 - me, std::memory_order_release);
        }
    }
    const std::chrono::duration<double, std::nano> taken = Clock::now() - begun;
    return over ? 0 : taken.count() / (2 * ROUNDS);
}
