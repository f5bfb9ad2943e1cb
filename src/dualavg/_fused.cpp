// The update of the dual averaging family in one pass over memory:
//
//     s_k     = s_{k-1} + lambda_k (g_k + weight_decay x_k)
//     x_{k+1} = lerp(x_k, x_0, c) - (c / beta_k) s_k
//
// operation by operation as _kernels.py's for-loop has it, so that both round alike; and x in bfloat16 as
// _rounding.py has it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

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

struct Part {  // of the list of tensors, as Python hands it over
    void *x; const void *g; const void *x0; void *s; float* step; int64_t n; double decayed, lambda, pull, k;
};

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
    const bool decay = step.decayed != S(0), near = std::fabs(step.c) < S(0.5);
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

struct Span { uintptr_t from, to; bool written; };

// Whether nothing that is written lies in the memory of anything else, so that the order of elements is free.
bool are_apart(const Part* parts, int64_t count, int kind) {
    constexpr int64_t SIZES[][4] = {{4, 4, 4, 4}, {4, 4, 2, 4}, {2, 2, 2, 4}, {8, 8, 8, 8}};  // x, g, x0, s
    thread_local std::vector<Span> spans;
    spans.clear();
    for (int64_t i = 0; i < count; ++i) {
        const void* starts[] = {parts[i].x, parts[i].g, parts[i].x0, parts[i].s};
        for (int j = 0; j < 4 && parts[i].n; ++j) {
            const auto from = reinterpret_cast<uintptr_t>(starts[j]);
            spans.push_back({from, from + parts[i].n * SIZES[kind][j], j == 0 || j == 3});
        }
    }
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.from < b.from; });
    uintptr_t end = 0, end_of_written = 0;
    for (const Span& span : spans) {
        if (span.from < (span.written ? end : end_of_written)) return false;
        end = std::max(end, span.to);
        if (span.written) end_of_written = std::max(end_of_written, span.to);
    }
    return true;
}

// What torch's stable C functions say of a tensor. A handle of theirs is the address of a place that holds the
// address of the tensor's insides, which is what Python's `_cdata` is.
using Handle = void**;
struct Looks {
    int32_t (*data_ptr)(Handle, void**);
    int32_t (*dtype)(Handle, int32_t*);
    int32_t (*layout)(Handle, int32_t*);
    int32_t (*device_type)(Handle, int32_t*);
    int32_t (*dim)(Handle, int64_t*);
    int32_t (*sizes)(Handle, int64_t**);
    int32_t (*strides)(Handle, int64_t**);
    int32_t (*storage_size)(Handle, int64_t*);
    int32_t (*storage_offset)(Handle, int64_t*);
};
struct Codes { int32_t float32, bfloat16, float64, strided, cpu; };
Looks look;
Codes code;
bool introduced = false;

struct Seen { void* data; int32_t dtype; int64_t dim, n; const int64_t* sizes; };

// Whether a tensor is dense, on the CPU, and its elements lie one after the other, all in its storage.
bool see(void** cell, Seen* out) {
    int32_t layout, device;
    int64_t *sizes, *strides, bytes, offset;
    if (look.layout(cell, &layout) || layout != code.strided) return false;
    if (look.device_type(cell, &device) || device != code.cpu) return false;
    if (look.dtype(cell, &out->dtype) || look.dim(cell, &out->dim)) return false;
    if (look.sizes(cell, &sizes) || look.strides(cell, &strides)) return false;
    out->sizes = sizes;
    out->n = 1;
    for (int64_t d = 0; d < out->dim; ++d) out->n *= sizes[d];
    int64_t expected = 1;
    for (int64_t d = out->dim - 1; d >= 0 && out->n > 0; --d) {
        if (sizes[d] != 1 && strides[d] != expected) return false;
        expected *= sizes[d];
    }
    if (look.storage_size(cell, &bytes) || look.storage_offset(cell, &offset)) return false;
    const int64_t size = out->dtype == code.float32 ? 4 : out->dtype == code.float64 ? 8 : 2;
    if (out->n && (offset + out->n) * size > bytes) return false;
    return look.data_ptr(cell, &out->data) == 0 && (out->data || out->n == 0);  // no freed or imagined storage
}

bool alike(const Seen& a, const Seen& b) {
    return a.dim == b.dim && std::memcmp(a.sizes, b.sizes, sizeof(int64_t) * a.dim) == 0;
}

int kind_of(int32_t x, int32_t g, int32_t x0, int32_t s) {
    if (x != g) return -1;
    if (x == code.float64) return x0 == x && s == x ? 3 : -1;
    if (s != code.float32) return -1;
    if (x == code.float32) return x0 == x ? 0 : x0 == code.bfloat16 ? 1 : -1;
    return x == code.bfloat16 && x0 == x ? 2 : -1;
}

}  // namespace

extern "C" void dualavg_introduce(void* const* looks, const int32_t* codes) {
    std::memcpy(&look, looks, sizeof look);
    std::memcpy(&code, codes, sizeof code);
    introduced = true;
}

// Fill in `parts`, and k + 1 of each behind them, from five cells a parameter: x, g, x0, s, step. Changes no tensor.
// Returns what kind they are, or -1 if any is out of the ordinary.
extern "C" int dualavg_prepare(void** cells, int64_t count, Part* parts) {
    if (!introduced) return -1;
    auto* ks = reinterpret_cast<double*>(parts + count);
    int kind = count ? -1 : 0;
    for (int64_t i = 0; i < 5 * count; ++i) {  // all at once: a network has swept them from the caches
        for (int j = 0; j < 256; j += 64) __builtin_prefetch(static_cast<const char*>(cells[i]) + j);
    }
    for (int64_t i = 0; i < count; ++i, cells += 5) {
        Seen x, g, x0, s, step;
        if (!see(cells, &x) || !see(cells + 1, &g) || !see(cells + 2, &x0) || !see(cells + 3, &s)) return -1;
        if (!see(cells + 4, &step) || step.dtype != code.float32 || step.n != 1) return -1;
        if (!alike(x, g) || !alike(x, x0) || !alike(x, s)) return -1;
        const int here = kind_of(x.dtype, g.dtype, x0.dtype, s.dtype);
        if (here < 0 || (i && here != kind)) return -1;
        kind = here;
        parts[i] = Part{x.data, g.data, x0.data, s.data, static_cast<float*>(step.data), x.n, 0, 0, 0, 0};
        ks[i] = double(*parts[i].step) + 1;
    }
    return are_apart(parts, count, kind) ? kind : -1;
}

// Count the step of what was prepared, and take it. `numbers`: c, weight decay, whether to maximize, threads, kind,
// every lambda_k, every beta_k: one block, because Python takes a while to hand over each thing.
extern "C" int dualavg_step(Part* parts, int64_t count, const double* numbers) {
    const double c = numbers[0], weight_decay = numbers[1], *lambdas = numbers + 5, *betas = lambdas + count;
    for (int64_t i = 0; i < count; ++i) {
        *parts[i].step += 1;
        parts[i].decayed = lambdas[i] * weight_decay;
        parts[i].lambda = numbers[2] != 0 ? -lambdas[i] : lambdas[i];
        parts[i].pull = -(c / betas[i]);
        parts[i].k = *parts[i].step;
    }
    return dispatch(parts, count, c, int(numbers[3]), int(numbers[4]));
}

extern "C" int dualavg_are_apart(const Part* parts, int64_t count, int kind) {
    return are_apart(parts, count, kind);
}

extern "C" int dualavg_update(const Part* parts, int64_t count, double c, int threads, int kind) {
    return dispatch(parts, count, c, threads, kind);
}
