// The update of the dual averaging family in one pass over memory:
//
//     s_k     = s_{k-1} + lambda_k (g_k + weight_decay x_k)
//     x_{k+1} = lerp(x_k, x_0, c) - (c / beta_k) s_k
//
// operation by operation as _kernels.py's for-loop has it, so that both round alike; and x in bfloat16 as
// _rounding.py has it.
#include "_fused.h"

#include <cmath>
#include <cstring>
#include <type_traits>

namespace {

struct bf16 { uint16_t bits; };

inline float as_float(uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}

inline uint32_t as_bits(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    return bits;
}

inline double wide(double v) { return v; }
inline float wide(float v) { return v; }
inline float wide(bf16 v) { return as_float(static_cast<uint32_t>(v.bits) << 16); }

inline void put(double& to, double v) { to = v; }
inline void put(float& to, float v) { to = v; }
inline void put(bf16& to, float v) {  // to the nearest, ties to even; a NaN stays one
    const uint32_t bits = as_bits(v);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    to.bits = static_cast<uint16_t>(v != v ? 0x7fc0u : rounded);
}

inline float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma_(double a, double b, double c) { return __builtin_fma(a, b, c); }

#ifndef LOOK_AHEAD  // _compiler.py says what is best on which processor
#define LOOK_AHEAD 0
#endif
#ifndef FRONTS
#define FRONTS 1
#endif
constexpr int64_t BLOCK = 64;   // elements between two looks ahead
constexpr int64_t AHEAD = 512;  // elements: far enough for memory, and over the edge of a page in time
constexpr int64_t FAR = 1 << 14, STRETCH = 512;  // elements: from which on there are fronts; of each one's turn

template <int WRITTEN, typename T>
inline void look_ahead(const T* from) {  // what will be written is asked for as one's own
    for (int64_t i = 0; i < BLOCK; i += 64 / sizeof(T)) __builtin_prefetch(from + AHEAD + i, WRITTEN);
}

constexpr uint32_t MIX = 0x9e3779b1u, MIX_AGAIN = 0x85ebca6bu;

inline uint32_t mixed(double k) {
    const auto bits = static_cast<uint32_t>(static_cast<int64_t>(k)) * MIX;
    return (bits ^ (bits >> 16)) * MIX_AGAIN;
}

// y as a bfloat16 that takes turns, by the rule of _rounding.py; `scale` is (1 - c^2) / 2^23.
inline float in_turns(float y, float s, uint32_t k, float scale) {
    const auto upper = static_cast<uint32_t>(static_cast<int32_t>(as_bits(s)) >> 16);
    const int32_t h = (static_cast<int32_t>((upper ^ k) * MIX) >> 16) | 1;
    const float added = float(h) * scale + 0x1p-8f;
    return as_float(as_bits(y + as_float(as_bits(y) & 0xff800000u) * added) & 0xffff0000u);
}

template <typename S>
struct Numbers {  // of a tensor's step
    S decayed, lambda, c, pull;
    float scale;
    uint32_t k;
    Numbers(const Part& p, double c)
        : decayed(p.decayed), lambda(p.lambda), c(c), pull(p.pull), scale((1 - c * c) * 0x1p-23),
          k(mixed(p.k)) {}
};

template <bool DECAY, bool NEAR, bool TURNS, typename X, typename G, typename A, typename S>
inline void some(X* __restrict__ x, const G* __restrict__ g, const A* __restrict__ x0, S* __restrict__ s,
                 int64_t n, const Numbers<S> step) {
    const S rest = S(1) - step.c;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
        const S xi = wide(x[i]), a = wide(x0[i]), way = a - xi;
        S si = s[i];
        if (DECAY) si = fma_(step.decayed, xi, si);
        si = fma_(step.lambda, S(wide(g[i])), si);
        s[i] = si;
        S y = NEAR ? fma_(step.c, way, xi) : fma_(-rest, way, a);  // torch's lerp: exact at both ends
        y = fma_(step.pull, si, y);
        if constexpr (TURNS) y = in_turns(y, si, step.k, step.scale);
        put(x[i], y);
    }
}

template <bool DECAY, bool NEAR, bool TURNS, typename X, typename G, typename A, typename S>
void flat(X* x, const G* g, const A* x0, S* s, int64_t n, const Numbers<S>& step) {
    if (FRONTS > 1 && n >= FAR) {  // a processor that looks ahead by itself does so at each, and asks for more
        const int64_t apart = n / FRONTS / STRETCH * STRETCH;
        for (int64_t i = 0; i < apart; i += STRETCH) {
            for (int64_t at = i; at < FRONTS * apart; at += apart) {
                some<DECAY, NEAR, TURNS>(x + at, g + at, x0 + at, s + at, STRETCH, step);
            }
        }
        x += FRONTS * apart, g += FRONTS * apart, x0 += FRONTS * apart, s += FRONTS * apart;
        n -= FRONTS * apart;
    }
    for (; n >= BLOCK; x += BLOCK, g += BLOCK, x0 += BLOCK, s += BLOCK, n -= BLOCK) {
        if (LOOK_AHEAD && n >= AHEAD + BLOCK) {
            look_ahead<1>(x), look_ahead<0>(g), look_ahead<0>(x0), look_ahead<1>(s);
        }
        some<DECAY, NEAR, TURNS>(x, g, x0, s, BLOCK, step);
    }
    some<DECAY, NEAR, TURNS>(x, g, x0, s, n, step);
}

template <typename X, typename G, typename A, typename S>
void piece(const Part& p, int64_t from, int64_t n, double c) {
    X* x = static_cast<X*>(p.x) + from;
    const G* g = static_cast<const G*>(p.g) + from;
    const A* x0 = static_cast<const A*>(p.x0) + from;
    S* s = static_cast<S*>(p.s) + from;
    const Numbers<S> step(p, c);
    const bool decay = !std::isnan(p.decayed), near = std::fabs(step.c) < S(0.5);
    constexpr bool HALF = std::is_same<X, bf16>::value;  // an average in half precision is rounded in turns
    if (near && decay) flat<true, true, HALF>(x, g, x0, s, n, step);
    else if (near) flat<false, true, HALF>(x, g, x0, s, n, step);
    else if (c < 1 && decay) flat<true, false, HALF>(x, g, x0, s, n, step);
    else if (c < 1) flat<false, false, HALF>(x, g, x0, s, n, step);
    else if (decay) flat<true, false, false>(x, g, x0, s, n, step);
    else flat<false, false, false>(x, g, x0, s, n, step);
}

constexpr int64_t WORTH = 1 << 15;  // elements for which a second thread is woken

template <typename X, typename G, typename A, typename S>
void run(const Part* parts, int64_t count, double c, int threads) {
    int64_t all = 0;
    for (int64_t i = 0; i < count; ++i) all += parts[i].n;
    if (all <= WORTH) threads = 1;
    // Every thread gets as many elements, in whole blocks, wherever the tensors begin and end.
    const int64_t share = (all / threads / BLOCK + 1) * BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
    for (int t = 0; t < threads; ++t) {
        int64_t begin = t * share, left = share;
        for (int64_t i = 0; i < count && left > 0; ++i) {
            const int64_t n = parts[i].n;
            if (begin >= n) { begin -= n; continue; }
            const int64_t here = n - begin < left ? n - begin : left;
            piece<X, G, A, S>(parts[i], begin, here, c);
            left -= here, begin = 0;
        }
    }
}

int dispatch(const Part* parts, int64_t count, double c, int threads, int kind) {
    switch (kind) {  // parameter, gradient, anchor; s is float, double where all are
        case 0: run<float, float, float, float>(parts, count, c, threads); return 0;
        case 1: run<float, float, bf16, float>(parts, count, c, threads); return 0;
        case 2: run<bf16, bf16, bf16, float>(parts, count, c, threads); return 0;
        case 3: run<double, double, double, double>(parts, count, c, threads); return 0;
    }
    return 1;
}

}  // namespace

// Count the step of what was prepared, and take it. `numbers`: c, weight decay, whether to maximize, threads, kind, whether
// there is one lambda_k and one beta_k for all, every lambda_k, every beta_k: one block, because Python takes a while
// to hand over each thing.
extern "C" int dualavg_step(Part* parts, int64_t count, const double* numbers) {
    const double c = numbers[0], weight_decay = numbers[1], *lambdas = numbers + 6;
    const int64_t each = numbers[5] != 0 ? 0 : 1;
    const double* betas = lambdas + (each ? count : 1);
    for (int64_t i = 0; i < count; ++i) {
        const double lambda = lambdas[each * i];
        *parts[i].step += 1;
        parts[i].decayed = weight_decay != 0 ? lambda * weight_decay : NAN;
        parts[i].lambda = numbers[2] != 0 ? -lambda : lambda;
        parts[i].pull = -(c / betas[each * i]);
        parts[i].k = *parts[i].step;
    }
    return dispatch(parts, count, c, int(numbers[3]), int(numbers[4]));
}

extern "C" int dualavg_update(const Part* parts, int64_t count, double c, int threads, int kind) {
    return dispatch(parts, count, c, threads, kind);
}
