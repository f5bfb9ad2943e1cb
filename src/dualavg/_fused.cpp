// The update of the dual averaging family in one pass over memory:
//
//     s_k     = s_{k-1} + lambda_k (g_k + weight_decay x_k)
//     x_{k+1} = lerp(x_k, x_0, c) - (c / beta_k) s_k
//
// operation by operation as _kernels.py's for-loop has it, so that both round alike.
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

struct bf16 { uint16_t bits; };

inline double wide(double v) { return v; }
inline float wide(float v) { return v; }
inline float wide(bf16 v) {
    const uint32_t bits = static_cast<uint32_t>(v.bits) << 16;
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}

inline void put(double& to, double v) { to = v; }
inline void put(float& to, float v) { to = v; }
inline void put(bf16& to, float v) {  // to the nearest, ties to even; a NaN stays one
    uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    to.bits = static_cast<uint16_t>(v != v ? 0x7fc0u : rounded);
}

inline float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma_(double a, double b, double c) { return __builtin_fma(a, b, c); }

template <typename X, typename G, typename A, typename S>
void flat(X* __restrict__ x, const G* __restrict__ g, const A* __restrict__ x0, S* __restrict__ s, int64_t n,
          S decayed, S lambda, S c, S pull) {
    const bool near = std::fabs(c) < S(0.5);  // torch's lerp: exact at both ends
    const S rest = S(1) - c;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
        const S xi = wide(x[i]), a = wide(x0[i]), way = a - xi;
        S si = s[i];
        if (decayed != S(0)) si = fma_(decayed, xi, si);
        si = fma_(lambda, S(wide(g[i])), si);
        s[i] = si;
        const S y = near ? fma_(c, way, xi) : fma_(-rest, way, a);
        put(x[i], fma_(pull, si, y));
    }
}

struct Part {  // of the list of tensors, as Python hands it over
    void *x; const void *g; const void *x0; void *s; int64_t n; double decayed, lambda, pull;
};

constexpr int64_t CHUNK = 1 << 15;

template <typename X, typename G, typename A, typename S>
void run(const Part* parts, int64_t count, double c, int threads) {
    int64_t chunks = 0, elements = 0;
    for (int64_t i = 0; i < count; ++i) {
        chunks += (parts[i].n + CHUNK - 1) / CHUNK;
        elements += parts[i].n;
    }
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && elements > CHUNK)
    for (int64_t k = 0; k < chunks; ++k) {
        int64_t i = 0, left = k;
        for (int64_t here; left >= (here = (parts[i].n + CHUNK - 1) / CHUNK); ++i) left -= here;
        const Part& p = parts[i];
        const int64_t from = left * CHUNK, n = p.n - from < CHUNK ? p.n - from : CHUNK;
        flat(static_cast<X*>(p.x) + from, static_cast<const G*>(p.g) + from, static_cast<const A*>(p.x0) + from,
             static_cast<S*>(p.s) + from, n, S(p.decayed), S(p.lambda), S(c), S(p.pull));
    }
}

}  // namespace

extern "C" int dualavg_update(const Part* parts, int64_t count, double c, int threads, int kind) {
    switch (kind) {  // parameter, gradient, anchor; s is float, double where all are
        case 0: run<float, float, float, float>(parts, count, c, threads); return 0;
        case 1: run<float, float, bf16, float>(parts, count, c, threads); return 0;
        case 2: run<bf16, bf16, bf16, float>(parts, count, c, threads); return 0;
        case 3: run<double, double, double, double>(parts, count, c, threads); return 0;
    }
    return 1;
}
