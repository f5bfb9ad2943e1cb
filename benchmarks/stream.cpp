// The least that a step of MDA moves: reads g, x, x0, s and writes x, s, with next to no arithmetic.
#include <cstdint>

extern "C" void stream(float* __restrict__ x, const float* __restrict__ g, const float* __restrict__ x0,
                       float* __restrict__ s, int64_t n, int threads) {
#pragma omp parallel for simd num_threads(threads) schedule(static) if (threads > 1 && n > 32768)
    for (int64_t i = 0; i < n; ++i) {
        s[i] += g[i];
        x[i] += x0[i];
    }
}
