// The update of the dual averaging family in one pass over memory, as a torch operator:
//
//     s_k     = s_{k-1} + lambda_k (g_k + weight_decay x_k)
//     x_{k+1} = lerp(x_k, x_0, c) - (c / beta_k) s_k
//
// Operation by operation as in the for-loop of _update.py, and bfloat16 rounded as in _rounding.py: the results
// are equal bit for bit. On request it also computes the inner products of _update.py.
// LibTorch's stable ABI provides the tensors and the threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <type_traits>
#include <vector>

namespace {

using torch::stable::Tensor;
using Tensors = std::vector<Tensor>;

// ---- Numbers ------------------------------------------------------------------------------------------------

struct bf16 { uint16_t bits; };

template <typename To, typename From>
inline To bit_cast(From from) {
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <typename T> inline T load(T v) { return v; }
inline float load(bf16 v) { return bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }

template <typename T> inline void store(T& to, T v) { to = v; }
inline void store(bf16& to, float v) {  // to nearest, ties to even; NaN stays NaN
    const uint32_t bits = bit_cast<uint32_t>(v);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    to.bits = static_cast<uint16_t>(v != v ? 0x7fc0u : rounded);
}

constexpr uint32_t MIX = 0x9e3779b1u, MIX_AGAIN = 0x85ebca6bu;

inline uint32_t hash(double k) {
    const auto bits = static_cast<uint32_t>(static_cast<int64_t>(k)) * MIX;
    return (bits ^ (bits >> 16)) * MIX_AGAIN;
}

// Dithered rounding of y to bfloat16; `k` is the hash of k + 1, `scale` is (1 - c^2) / 2^23.
inline float dithered(float y, float s, uint32_t k, float scale) {
    const auto upper = static_cast<uint32_t>(static_cast<int32_t>(bit_cast<uint32_t>(s)) >> 16);
    const int32_t h = (static_cast<int32_t>((upper ^ k) * MIX) >> 16) | 1;
    const float offset = float(h) * scale + 0x1p-8f;
    const float power = bit_cast<float>(bit_cast<uint32_t>(y) & 0xff800000u);
    return bit_cast<float>(bit_cast<uint32_t>(y + power * offset) & 0xffff0000u);
}

// ---- The update of one tensor -------------------------------------------------------------------------------

struct Products { double hd = 0, hh = 0, ss = 0; };  // <h_k, x_0 - x_k>, ||h_k||^2 and ||s_k||^2

struct Row {  // one parameter's tensors and numbers
    void* x; const void* g; const void* x0; void* s; float* step;
    int64_t size;
    Products (*kernel)(const Row&, int64_t begin, int64_t end);
    bool has_decay, measured;
    double weight_decay, decay, lambda, c, pull, k;  // decay = lambda_k weight_decay, pull = -c / beta_k, k = k + 1
};

template <bool DECAY, bool NEAR, bool DITHER, bool MEASURED, typename X, typename A, typename S>
Products elements(X* __restrict__ x, const X* __restrict__ g, const A* __restrict__ x0, S* __restrict__ s, int64_t n,
                  const Row& row) {
    const S decay = row.decay, lambda = row.lambda, c = row.c, keep = S(1) - c, pull = row.pull;
    const S weight_decay = row.weight_decay;
    const float scale = (1 - row.c * row.c) * 0x1p-23;
    const uint32_t k = hash(row.k);
    double hd = 0, hh = 0, ss = 0;
#pragma omp simd reduction(+ : hd, hh, ss)
    for (int64_t i = 0; i < n; ++i) {
        // s_k = s_{k-1} + lambda_k (g_k + weight_decay x_k)
        const S xi = load(x[i]), gi = load(g[i]), anchor = load(x0[i]), difference = anchor - xi;
        S si = s[i];
        if (DECAY) si = std::fma(decay, xi, si);
        si = std::fma(lambda, gi, si);
        s[i] = si;
        if (MEASURED) {
            const S h = DECAY ? std::fma(weight_decay, xi, gi) : gi;  // h_k = g_k + weight_decay x_k
            hd += double(h * difference), hh += double(h * h), ss += double(si * si);
        }
        // x_{k+1} = lerp(x_k, x_0, c) - (c / beta_k) s_k; torch's lerp is exact at both ends
        S y = NEAR ? std::fma(c, difference, xi) : std::fma(-keep, difference, anchor);
        y = std::fma(pull, si, y);
        if constexpr (DITHER) y = dithered(y, si, k, scale);
        store(x[i], y);
    }
    return {hd, hh, ss};
}

// Large tensors at two places in turns: the processor's prefetcher follows twice as many streams.
template <bool DECAY, bool NEAR, bool DITHER, typename X, typename A, typename S>
Products update(X* x, const X* g, const A* x0, S* s, int64_t n, const Row& row) {
    constexpr int64_t STRETCH = 512;
    const int64_t half = n < 1 << 14 ? 0 : n / 2 / STRETCH * STRETCH;
    const auto run = row.measured ? elements<DECAY, NEAR, DITHER, true, X, A, S> : elements<DECAY, NEAR, DITHER, false, X, A, S>;
    Products sum;
    auto part = [&](int64_t i, int64_t count) {
        const Products found = run(x + i, g + i, x0 + i, s + i, count, row);
        sum.hd += found.hd, sum.hh += found.hh, sum.ss += found.ss;
    };
    for (int64_t i = 0; i < half; i += STRETCH) part(i, STRETCH), part(half + i, STRETCH);
    part(2 * half, n - 2 * half);
    return sum;
}

template <typename X, typename A, typename S>
Products kernel(const Row& row, int64_t begin, int64_t end) {
    X* x = static_cast<X*>(row.x) + begin;
    const X* g = static_cast<const X*>(row.g) + begin;
    const A* x0 = static_cast<const A*>(row.x0) + begin;
    S* s = static_cast<S*>(row.s) + begin;
    const int64_t n = end - begin;
    const bool near = std::fabs(S(row.c)) < S(0.5);
    constexpr bool HALF = std::is_same_v<X, bf16>;  // dithered where c < 1: at c = 1 there is no average to follow
    if (near && row.has_decay) return update<true, true, HALF>(x, g, x0, s, n, row);
    if (near) return update<false, true, HALF>(x, g, x0, s, n, row);
    if (row.c < 1 && row.has_decay) return update<true, false, HALF>(x, g, x0, s, n, row);
    if (row.c < 1) return update<false, false, HALF>(x, g, x0, s, n, row);
    if (row.has_decay) return update<true, false, false>(x, g, x0, s, n, row);
    return update<false, false, false>(x, g, x0, s, n, row);
}

// ---- Which tensors fit --------------------------------------------------------------------------------------

const int32_t F32 = aoti_torch_dtype_float32(), F64 = aoti_torch_dtype_float64(),
              BF16 = aoti_torch_dtype_bfloat16();

// The kernel for the dtypes of x, g, x0 and s; nullptr if there is none.
auto kernel_for(int32_t x, int32_t g, int32_t x0, int32_t s) -> decltype(Row::kernel) {
    if (g != x) return nullptr;
    if (x == F32 && x0 == F32 && s == F32) return kernel<float, float, float>;
    if (x == F32 && x0 == BF16 && s == F32) return kernel<float, bf16, float>;
    if (x == BF16 && x0 == BF16 && s == F32) return kernel<bf16, bf16, float>;
    if (x == F64 && x0 == F64 && s == F64) return kernel<double, double, double>;
    return nullptr;
}

struct View {  // what the checks need to know of a tensor
    int64_t dim, size = 1, *sizes, *strides;
    int32_t dtype;
    void* data = nullptr;
    uintptr_t begin = 0, end = 0;  // its memory
    bool readable;  // strided, on the CPU, and all of it inside its storage, which is not freed or fake

    explicit View(const Tensor& t) {
        const auto h = t.get();
        int32_t device, layout;
        readable = !aoti_torch_get_device_type(h, &device) && device == aoti_torch_device_type_cpu() &&
                   !aoti_torch_get_layout(h, &layout) && layout == aoti_torch_layout_strided() &&
                   !aoti_torch_get_dim(h, &dim) && !aoti_torch_get_sizes(h, &sizes) &&
                   !aoti_torch_get_strides(h, &strides) && !aoti_torch_get_dtype(h, &dtype);
        if (!readable) return;
        int64_t extent = 1, bytes, offset;  // extent: elements from the first to the last, both included
        for (int64_t d = 0; d < dim; ++d) size *= sizes[d], extent += (sizes[d] - 1) * strides[d];
        if (size == 0) return;
        const int64_t item = aoti_torch_dtype_element_size(dtype);
        readable = !aoti_torch_get_storage_size(h, &bytes) && !aoti_torch_get_storage_offset(h, &offset) &&
                   (offset + extent) * item <= bytes && !aoti_torch_get_data_ptr(h, &data) && data;
        if (readable) begin = reinterpret_cast<uintptr_t>(data), end = begin + extent * item;
    }

    bool is_dense() const {  // every element has an address of its own, with no gaps between them
        std::vector<std::pair<int64_t, int64_t>> order;
        for (int64_t d = 0; d < dim; ++d)
            if (sizes[d] != 1) order.emplace_back(strides[d], sizes[d]);
        std::sort(order.begin(), order.end());
        int64_t expected = 1;
        for (const auto& [stride, n] : order) {
            if (stride != expected && size != 0) return false;
            expected *= n;
        }
        return true;
    }

    bool is_like(const View& x) const {  // readable, of the same shape, with elements in the same order
        if (!readable || !x.readable || dim != x.dim) return false;
        for (int64_t d = 0; d < dim; ++d)
            if (sizes[d] != x.sizes[d] || (sizes[d] != 1 && size != 0 && strides[d] != x.strides[d])) return false;
        return true;
    }
};

struct Span { uintptr_t begin, end; bool written; };
bool overlap(std::vector<Span>& spans) {
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
    uintptr_t end = 0, end_of_written = 0;
    for (const Span& span : spans) {
        if (span.begin < (span.written ? end : end_of_written)) return true;
        end = std::max(end, span.end);
        if (span.written) end_of_written = std::max(end_of_written, span.end);
    }
    return false;
}

// Append a row for each parameter that fits; return the indices of the others. All, if memory that is written
// belongs to two tensors: then the order of the updates matters.
std::vector<int64_t> check(const Tensors& xs, const Tensors& gs, const Tensors& x0s, const Tensors& ss,
                           const Tensors& steps, std::vector<Row>& rows) {
    const size_t count = xs.size();
    STD_TORCH_CHECK(gs.size() == count && x0s.size() == count && ss.size() == count && steps.size() == count,
                    "dualavg: lists of tensors must have the same length");
    std::vector<int64_t> misfits;
    std::vector<Span> spans;
    rows.reserve(count), spans.reserve(5 * count);
    for (size_t i = 0; i < count; ++i) {
        const View x(xs[i]), g(gs[i]), x0(x0s[i]), s(ss[i]), step(steps[i]);
        for (const View* view : {&x, &g, &x0, &s, &step})
            if (view->begin != view->end) spans.push_back({view->begin, view->end, view != &g && view != &x0});
        const bool fits = g.is_like(x) && x0.is_like(x) && s.is_like(x) && x.is_dense() && step.readable &&
                          step.size == 1 && step.dtype == F32;
        const auto kernel = fits ? kernel_for(x.dtype, g.dtype, x0.dtype, s.dtype) : nullptr;
        if (kernel) rows.push_back({x.data, g.data, x0.data, s.data, static_cast<float*>(step.data), x.size, kernel});
        else misfits.push_back(i);
    }
    if (overlap(spans)) misfits.resize(count), std::iota(misfits.begin(), misfits.end(), 0);
    return misfits;
}

// ---- The operators ------------------------------------------------------------------------------------------

std::vector<int64_t> misfits(Tensors x, Tensors g, Tensors x0, Tensors s, Tensors steps) {
    std::vector<Row> rows;
    return check(x, g, x0, s, steps, rows);
}

constexpr int64_t GRAIN = 1 << 15;  // elements below which one thread is faster than two
constexpr int64_t PIECE = 1 << 15;  // most elements that one thread updates without a break

struct Piece { const Row* row; int64_t begin, end; Products products; };

// `products` gets a row per tensor: <h_k, x_0 - x_k>, ||h_k||^2 and ||s_k||^2.
void step(Tensors x, Tensors g, Tensors x0, Tensors s, Tensors steps, std::vector<double> lambdas,
          std::vector<double> betas, std::vector<double> ks, double c, double weight_decay, bool maximize,
          std::optional<Tensor> products) {
    std::vector<Row> rows;
    STD_TORCH_CHECK(check(x, g, x0, s, steps, rows).empty(), "dualavg::step_ does not support these tensors");
    STD_TORCH_CHECK(lambdas.size() == rows.size() && betas.size() == rows.size() && ks.size() == rows.size(),
                    "dualavg::step_ needs one lambda, beta and k per tensor");
    double* out = nullptr;
    if (products) {
        const View view(*products);
        STD_TORCH_CHECK(view.readable && view.dtype == F64 && view.dim == 2 && view.is_dense() && view.strides[1] == 1 &&
                            view.sizes[0] == int64_t(rows.size()) && view.sizes[1] == 3,
                        "dualavg::step_ needs float64 products of shape (tensors, 3)");
        out = static_cast<double*>(view.data);
    }
    std::vector<Piece> pieces;  // their sums do not depend on the number of threads
    int64_t total = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
        Row& row = rows[i];
        row.has_decay = weight_decay != 0, row.measured = out != nullptr;
        row.weight_decay = maximize ? -weight_decay : weight_decay;
        row.decay = lambdas[i] * weight_decay, row.lambda = maximize ? -lambdas[i] : lambdas[i];
        row.c = c, row.pull = -(c / betas[i]), row.k = ks[i];
        *row.step += 1;
        total += row.size;
        for (int64_t begin = 0; begin < row.size; begin += PIECE)
            pieces.push_back({&row, begin, std::min(begin + PIECE, row.size), {}});
    }
    // Update pieces, from the one that contains element `begin`, counted over all tensors, to that of `end`.
    auto work = [&pieces](int64_t begin, int64_t end) {
        int64_t position = 0;
        for (Piece& piece : pieces) {
            if (position >= end) break;
            if (position >= begin) piece.products = piece.row->kernel(*piece.row, piece.begin, piece.end);
            position += piece.end - piece.begin;
        }
    };
    const int64_t threads = total > GRAIN ? torch::stable::get_num_threads() : 1;
    if (threads == 1) work(0, total);
    else {
        const int64_t share = total / threads + 1;
        torch::stable::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
            work(first * share, std::min(last * share, total));
        });
    }
    if (!out) return;
    std::fill(out, out + 3 * rows.size(), 0.0);
    for (const Piece& piece : pieces) {
        double* sums = out + 3 * (piece.row - rows.data());
        const Products& found = piece.products;
        sums[0] += maximize ? -found.hd : found.hd, sums[1] += found.hh, sums[2] += found.ss;
    }
}

}  // namespace

STABLE_TORCH_LIBRARY(dualavg, m) {
    m.def("misfits(Tensor[] x, Tensor[] g, Tensor[] x0, Tensor[] s, Tensor[] steps) -> int[]");
    m.def("step_(Tensor(a!)[] x, Tensor[] g, Tensor[] x0, Tensor(b!)[] s, Tensor(c!)[] steps, float[] lambdas, "
          "float[] betas, float[] ks, float c, float weight_decay, bool maximize, Tensor(d!)? products=None) -> ()");
}

// For every kind of tensor, so that the answer is about the tensors given, not about what they wrap.
STABLE_TORCH_LIBRARY_IMPL(dualavg, CompositeImplicitAutograd, m) { m.impl("misfits", TORCH_BOX(&misfits)); }
STABLE_TORCH_LIBRARY_IMPL(dualavg, CPU, m) { m.impl("step_", TORCH_BOX(&step)); }
